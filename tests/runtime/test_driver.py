"""What becomes of the tasks when something happens to the driver or to their executors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import gridflow
from gridflow import SparkLauncher, TensorflowDistributor, errors
from gridflow.testing.cluster import wait_for_slots
from gridflow.testing.deaths import agent_of_this_task
from suite.waiting import LONGEST, patience, wait_for

pytestmark = pytest.mark.slow

SLEEP = """
import sys
from gridflow import Deadlines, LocalLauncher, SparkLauncher, TensorflowDistributor

def train():
    import subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # gridflow._training"])
    print("sleeping", flush=True)
    time.sleep(600)

def launcher():
    if sys.argv[1] == "local":
        return LocalLauncher()
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local-cluster[2,1,600]")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
    spark = builder.config("spark.executor.memory", "600m").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return SparkLauncher(spark)

try:
    deadlines = Deadlines(heartbeat=5)
    TensorflowDistributor(2, "none", launcher=launcher(), deadlines=deadlines).run(train)
except KeyboardInterrupt:
    print("interrupted in order", flush=True)
"""


@pytest.fixture(params=["local", "spark"])
def driver(request, tmp_path):
    """Start a driver of its own, up to where both of its tasks are at work."""
    script = tmp_path / "driver.py"
    script.write_text(SLEEP)
    process = subprocess.Popen(
        [sys.executable, str(script), request.param],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    asleep = 0
    for line in process.stdout:
        asleep += "sleeping" in line
        if asleep == 2:
            break
    yield process
    process.stdout.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_tasks_end_by_themselves_when_the_driver_is_killed(driver):
    driver.kill()
    driver.wait()  # the fixture waits for the tasks, and for what they started


def test_ctrl_c_in_the_driver_ends_everything_in_order(driver):
    driver.send_signal(signal.SIGINT)
    rest = driver.stdout.read()
    assert "interrupted in order" in rest
    assert driver.wait(patience()) == 0


def kill_own_executor():
    """Kill the JVM above the task that runs this."""
    for process in psutil.Process(agent_of_this_task()).parents():
        if "java" in process.name():
            process.kill()
            return
    raise AssertionError("there is no JVM above this task")


def lives(pid):
    """Return whether a process is there that can still do something."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_executor_is_reported_as_lost_once_no_training_process_is_left(spark, tmp_path):
    kill, folder = kill_own_executor, str(tmp_path)

    def train(ctx):
        from pathlib import Path

        Path(folder, str(os.getpid())).touch()
        if ctx.rank == 1:
            wait_for(lambda: len(os.listdir(folder)) == 2, "the other rank")
            kill()
        time.sleep(60)

    distributor = TensorflowDistributor(
        2, "none", launcher=SparkLauncher(spark), logs="none", progress=False
    )
    with pytest.raises(errors.TaskLost) as caught:
        distributor.run(train)
    assert [pid for pid in os.listdir(folder) if lives(int(pid))] == []
    assert len(os.listdir(folder)) == 2
    assert caught.value.first.task == "worker:1"
    assert caught.value.first.host
    assert "executor" in str(caught.value)
    wait_for_slots(spark, 2)  # Spark replaces it


def test_a_killed_executor_is_replaced_under_max_restarts(spark):
    kill = kill_own_executor

    def train(ctx):
        if ctx.generation == 0:
            if ctx.rank == 0:
                kill()
            time.sleep(60)
        return ctx.generation

    distributor = TensorflowDistributor(
        2, "none", launcher=SparkLauncher(spark), logs="none", progress=False, max_restarts=1
    )
    assert distributor.run(train).value == 1
    wait_for_slots(spark, 2)  # Spark replaces it


def test_more_workers_than_slots_are_refused_at_once_with_the_numbers(spark):
    distributor = TensorflowDistributor(3, "none", launcher=SparkLauncher(spark))
    with pytest.raises(errors.NotEnoughSlots, match="3 tasks .* has 2 free") as caught:
        distributor.run(print)
    assert (caught.value.required, caught.value.available) == (3, 2)
    with pytest.raises(errors.NotEnoughSlots):
        distributor.plan(print)


def run_alone(text, **environment):
    """Run a script in a driver of its own, as a user would, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
        env={**os.environ, **environment},
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run_script(scratch):
    """Run scripts for local masters in one driver, and return what each printed.

    The sessions are new, the Java process is not: it would cost more than most of the scripts.
    """
    program = Path(__file__).with_name("kept_driver.py")
    kept = subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

    def run(text, **environment):
        kept.stdin.write(json.dumps({"script": text, "environment": environment}) + "\n")
        kept.stdin.flush()
        answer = kept.stdout.readline()
        assert answer, f"the driver ended with {kept.wait()}"
        return json.loads(answer)

    yield run
    kept.stdin.close()
    kept.stdout.close()
    try:
        kept.wait(patience())
    except subprocess.TimeoutExpired:
        os.killpg(kept.pid, signal.SIGKILL)
        kept.wait()


LOCAL = """
from pyspark.sql import SparkSession
from gridflow import TensorflowDistributor, errors
spark = SparkSession.builder.master("{master}").config("spark.ui.enabled", "false").config(
    "spark.driver.host", "127.0.0.1"){settings}.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
def train(ctx):
    return [ctx.rank, ctx.num_workers]
try:
    print("value:", TensorflowDistributor(2, "none", {options}).run(train).value)
except errors.GridflowError as error:
    print(type(error).__name__, error)
"""


def test_tasks_run_as_threads_of_a_local_master(run_script):
    text = LOCAL.format(master="local[2]", settings="", options="")
    assert "value: [0, 2]" in run_script(text)


def test_two_tasks_share_a_core_where_each_needs_half_of_one(run_script):
    half = '.config("spark.task.cpus", "0.5")'
    text = LOCAL.format(master="local[1]", settings=half, options="")
    text += 'print("slots:", TensorflowDistributor(2, "none").plan(train).slots)\n'
    printed = run_script(text)
    assert "value: [0, 2]" in printed
    assert "slots: 2" in printed


def test_what_the_driver_binds_and_what_executors_connect_to_are_two_things(run_script):
    bound = '.config("spark.driver.bindAddress", "0.0.0.0")'
    text = LOCAL.format(master="local[2]", settings=bound, options="")
    text += 'print(TensorflowDistributor(2, "none").plan(train).details["coordinator"])\n'
    printed = run_script(text)
    assert "value: [0, 2]" in printed
    assert "127.0.0.1, bound to 0.0.0.0" in printed


def test_too_few_threads_of_a_local_master_are_refused(run_script):
    printed = run_script(LOCAL.format(master="local[1]", settings="", options=""))
    assert "NotEnoughSlots the job has 2 tasks" in printed


def test_a_job_starts_with_as_many_workers_as_there_are_slots_for(run_script):
    text = LOCAL.format(master="local[2]", settings="", options="")
    text = text.replace('(2, "none", )', '((1, 3), "multi_worker_mirrored")')
    text = text.replace("[ctx.rank, ctx.num_workers]", "[ctx.rank, ctx.num_workers, ctx.members]")
    assert "value: [0, 2, (0, 1)]" in run_script(text)


def test_fewer_slots_than_the_least_workers_are_refused(run_script):
    text = LOCAL.format(master="local[1]", settings="", options="")
    text = text.replace('(2, "none", )', '((2, 3), "multi_worker_mirrored")')
    assert "NotEnoughSlots the job has 3 tasks" in run_script(text)


def test_a_plan_waits_for_executors_as_a_run_does(run_script):
    """Those of a session that began just now, and of a machine that is busy: -Xint is slow."""
    settings = (
        '.config("spark.executor.memory", "600m")'
        '.config("spark.executor.extraJavaOptions", "-Xint")'
    )
    text = LOCAL.format(master="local-cluster[2,1,600]", settings=settings, options="")
    text = text.replace(".run(train).value", ".plan(train).slots")
    assert "value: 2" in run_script(text)


def test_a_python_without_tensorflow_is_named_with_the_patch(tmp_path, run_script):
    """The executors' Python is this one with everything but TensorFlow."""
    import site

    here = site.getsitepackages()[0]
    for entry in os.listdir(here):
        if not entry.lower().startswith(("tensorflow", "keras", "tf_keras")):
            os.symlink(os.path.join(here, entry), tmp_path / entry)
    os.symlink(os.path.dirname(gridflow.__file__), tmp_path / "gridflow")
    python = tmp_path / "python-without"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    settings = ""
    text = LOCAL.replace('"none"', '"multi_worker_mirrored"').format(
        master="local[2]", settings=settings, options=""
    )
    printed = run_script(text, PYSPARK_PYTHON=str(python))
    assert "EnvironmentMismatch" in printed
    assert "TensorFlow is not installed" in printed
    assert "pip install 'gridflow[tensorflow]'" in printed


def test_another_version_of_tensorflow_on_one_executor_is_named(tmp_path):
    """One of the executors' Pythons says that its TensorFlow is 2.20: its metadata is changed."""
    info = tmp_path / "tensorflow-2.20.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.20.0\n")
    python = tmp_path / "python-of-one"
    turn = tmp_path / "turn"
    python.write_text(
        f'#!/bin/sh\nif mkdir {turn} 2>/dev/null; then export PYTHONPATH="{tmp_path}:$PYTHONPATH"; '
        f'fi\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    text = LOCAL.replace('"none"', '"multi_worker_mirrored"').format(
        master="local-cluster[2,1,600]",
        settings='.config("spark.executor.memory", "600m")',
        options="",
    )
    printed = run_alone(text, PYSPARK_PYTHON=str(python))
    assert "EnvironmentMismatch" in printed
    assert "2.20.0" in printed  # whichever of the two asked first is the odd one


@pytest.mark.parametrize("python", ["/usr/bin/false", "/usr/bin/python3", "/no/such/python"])
def test_a_python_without_gridflow_is_named_with_the_patch(python, run_script):
    printed = run_script(
        LOCAL.format(master="local[2]", settings="", options=""), PYSPARK_PYTHON=python
    )
    assert "EnvironmentMismatch" in printed
    assert "named by PYSPARK_PYTHON" in printed
    assert "value" not in printed


STOPPED = """
from pyspark.sql import SparkSession
from gridflow import SparkLauncher, TensorflowDistributor, errors
for stop in (lambda spark: spark.stop(), lambda spark: spark.sparkContext._jsc.stop()):
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    launcher = SparkLauncher(spark)
    stop(spark)
    try:
        TensorflowDistributor(1, "none", launcher=launcher).run(lambda: 0)
    except errors.InvalidArgument as error:
        print("refused:", error)
    spark.stop()
"""


def test_a_session_that_was_stopped_is_refused(run_script):
    printed = run_script(STOPPED)
    assert printed.count("refused: the SparkSession was stopped. Create a new one") == 2


def test_a_full_disk_under_the_spool_is_named(tmp_path):
    """The spool's folder is a file system of 1 MiB, in a mount namespace of its own."""
    script = tmp_path / "job.py"
    script.write_text(
        "import numpy as np, sys\n"
        "from gridflow import LocalLauncher, Spool, TensorflowDistributor, errors\n"
        "quiet = dict(launcher=LocalLauncher(), logs='none', progress=False)\n"
        "try:\n"
        "    TensorflowDistributor(2, 'none', **quiet, spool=Spool(dir=sys.argv[1])).run(\n"
        "        print, data={'train': np.ones((1000, 1000))})\n"
        "except errors.GridflowError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {small}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("a file system can't be mounted here")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && exec {sys.executable} {script} {small}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "DataError" in done.stdout, done.stdout + done.stderr
    assert "No space left on device" in done.stdout
    assert "Spool(dir=" in done.stdout


def test_what_a_builder_is_given_where_an_application_runs_already_is_no_setting_of_it(spark):
    from pyspark.sql import SparkSession

    name = "spark.dynamicAllocation.enabled"
    try:
        same = SparkSession.builder.config(name, "true").getOrCreate()
        assert same.conf.get(name) == "true"  # Spark says so, and nothing is allocated dynamically
        job = TensorflowDistributor(2, "none", launcher=SparkLauncher(same))
        assert job.plan(print).details["stage"] == "barrier"
    finally:
        spark._jsparkSession.sessionState().conf().unsetConf(name)  # the public way refuses it
