"""An executor whose JVM stands still is noticed by its agent, long before Spark does."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from gridflow import Deadlines, SparkLauncher, TensorflowDistributor, errors
from gridflow._agent.executor import Executor, ExecutorWatch, executor_above
from gridflow.testing.cluster import wait_for_slots
from gridflow.testing.deaths import agent_of_this_task
from suite.waiting import wait_for

pytestmark = pytest.mark.slow

#: A process with a thread like Spark's, which wakes up again and again until it is told to stop.
JVM = """
import ctypes, sys, threading, time
stop = threading.Event()

def monitor():
    ctypes.CDLL(None).prctl(15, b"Worker Monitor", 0, 0, 0)  # PR_SET_NAME
    while not stop.is_set():
        time.sleep(0.1)
    threading.Event().wait()

threading.Thread(target=monitor, daemon=True).start()
print("up", flush=True)
sys.stdin.readline()
stop.set()
sys.stdin.readline()
"""
PATIENCE = 1.0


@pytest.fixture
def jvm():
    """Start what looks like an executor's JVM to whoever watches it."""
    with subprocess.Popen(
        [sys.executable, "-c", JVM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


class Watching:
    """Looks at a process, by a clock that passes a tenth of a second from one look to the next."""

    def __init__(self, process):
        self.watch = ExecutorWatch(Executor("7", process.pid), PATIENCE)
        self.watch._clock = self
        self.passed = 0.0

    def now(self):
        return self.passed

    def looks(self, seconds):
        """Return the first problem, and after how many seconds it was told."""
        began = self.passed
        while self.passed - began < seconds:
            problem = self.watch.look()
            if problem:
                return problem, self.passed - began
            self.passed += 0.1
            time.sleep(0.15)  # the process is really seen, which takes longer than by the clock
        return "", seconds


def test_a_stopped_process_is_told_after_the_patience_and_not_before(jvm):
    watching = Watching(jvm)
    assert watching.looks(2 * PATIENCE)[0] == ""
    jvm.send_signal(signal.SIGSTOP)
    assert watching.looks(0.7 * PATIENCE)[0] == ""
    jvm.send_signal(signal.SIGCONT)
    assert watching.looks(PATIENCE)[0] == ""
    jvm.send_signal(signal.SIGSTOP)
    problem, seconds = watching.looks(1000)
    assert f"executor 7 (pid {jvm.pid}) has been frozen for 1 seconds" in problem
    assert "SIGSTOP" in problem
    assert seconds >= PATIENCE


def test_a_process_whose_monitor_sleeps_on_is_told(jvm):
    watching = Watching(jvm)
    assert watching.looks(2 * PATIENCE + 2)[0] == ""
    jvm.stdin.write("\n")
    jvm.stdin.flush()
    problem, seconds = watching.looks(1000)
    assert "runs no Java code" in problem
    assert seconds > PATIENCE + 1.5  # Spark's thread may sleep for two seconds


def test_time_in_which_the_agent_itself_stood_still_is_not_the_executors(jvm):
    watch = ExecutorWatch(Executor("7", jvm.pid), PATIENCE)
    watch.look()
    jvm.send_signal(signal.SIGSTOP)
    watch.look()
    time.sleep(3 * PATIENCE)  # both stood still, and this one went on first
    assert watch.look() == ""
    jvm.send_signal(signal.SIGCONT)
    assert watch.look() == ""


def test_a_process_that_has_ended_is_not_frozen(jvm):
    watching = Watching(jvm)
    jvm.kill()
    assert watching.looks(2 * PATIENCE)[0] == ""


# Real executors ----------------------------------------------------------------------------------


def stop_own_executor(folder):
    os.kill(executor_above(agent_of_this_task()).pid, signal.SIGSTOP)


def stop_own_executor_for_a_moment(folder):
    pid = executor_above(agent_of_this_task()).pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)


def hold_own_executor_at_a_safepoint(folder):
    """Have its heap dumped into a pipe that is full: no thread runs Java meanwhile."""
    pipe = os.path.join(folder, "heap")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # noqa: F841 (it ends with this process)
    pid = executor_above(agent_of_this_task()).pid
    subprocess.Popen(
        ["jcmd", str(pid), "GC.heap_dump", "-overwrite", "-all", pipe],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def make_train(deed, folder, *, seconds=60):
    def train(ctx):
        if ctx.generation == 0:
            Path(folder, str(ctx.rank)).touch()
            wait_for(lambda: len(os.listdir(folder)) >= 2, "the other rank")
            if ctx.rank == 1:
                deed(folder)
            time.sleep(seconds)
        return ctx.generation

    return train


def jvm_of(spark, executor):
    """Return the process id of an executor of a session."""
    words = f"--executor-id {executor} "
    for process in psutil.process_iter(["cmdline"]):
        found = " ".join(process.info["cmdline"] or [])
        if words in found and spark.sparkContext.applicationId in found:
            return process.pid
    raise AssertionError(f"there is no executor {executor}")


@pytest.fixture
def quiet(spark):
    def make(**options):
        options = {
            "logs": "none",
            "progress": False,
            "deadlines": Deadlines(heartbeat=4),
            **options,
        }
        return TensorflowDistributor(2, "none", launcher=SparkLauncher(spark), **options)

    yield make
    wait_for_slots(spark, 2)  # the executor is replaced


def test_a_stopped_executor_is_reported_as_lost_soon_and_replaced(quiet, tmp_path):
    with pytest.raises(errors.TaskLost) as caught:
        quiet().run(make_train(stop_own_executor, str(tmp_path)))
    assert caught.value.first.task == "worker:1"
    assert caught.value.first.host
    assert "has been frozen for 4 seconds" in str(caught.value)


def test_an_executor_that_is_stopped_while_rows_come_from_it_is_lost_as_soon(spark, quiet):
    def slowly(batches):
        for batch in batches:
            time.sleep(1)
            yield batch

    distributor = quiet()  # from now on Spark's Python is this one
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, 100)  # so that there are some for minutes
    try:
        rows = spark.range(0, 100_000, 1, 2).mapInArrow(slowly, "id long")
        handle = distributor.start(
            lambda ctx: list(ctx.dataset(features="id", batch_size=4)), data=rows
        )
        wait_for(lambda: len(handle._run.executors(1)) == 2, "both executors")
        os.kill(jvm_of(spark, handle._run.executors(1)[0]), signal.SIGSTOP)
        with pytest.raises(errors.TaskLost, match="has been frozen for 4 seconds") as caught:
            handle.result()
    finally:
        spark.conf.set(name, before)
    assert caught.value.first.task == "worker:0"


def test_a_stopped_executor_is_followed_by_another_generation(quiet, tmp_path):
    result = quiet(max_restarts=1).run(make_train(stop_own_executor, str(tmp_path)))
    assert result.value == 1
    assert "frozen" in result.attempts[0].failure.summary


def test_an_executor_that_is_stopped_for_a_moment_is_none_that_is_lost(quiet, tmp_path):
    train = make_train(stop_own_executor_for_a_moment, str(tmp_path), seconds=6)
    assert quiet().run(train).value == 0


@pytest.mark.skipif(shutil.which("jcmd") is None, reason="needs a JDK")
def test_an_executor_that_runs_no_java_is_followed_by_another_generation(quiet, tmp_path):
    train = make_train(hold_own_executor_at_a_safepoint, str(tmp_path))
    result = quiet(max_restarts=1).run(train)
    assert result.value == 1
    assert "runs no Java code" in result.attempts[0].failure.summary
