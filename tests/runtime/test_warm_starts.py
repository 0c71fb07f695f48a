"""Training processes that are forked: what they share with others, and what they don't."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from gridflow import LaunchOptions, LocalLauncher, SparkLauncher, TensorflowDistributor
from gridflow._agent.environment import describe
from gridflow._agent.forkserver import client, server
from gridflow._agent.forkserver.server import ForkServer
from gridflow._wire.channel import Channel
from suite.waiting import patience, wait_for

pytestmark = pytest.mark.slow

SERVER = "gridflow._agent.forkserver.server"


@pytest.fixture
def run():
    """Run a function on this machine, with what it prints going to the result's logs."""

    def call(function, *args, num_workers=1, strategy="none", **options):
        distributor = TensorflowDistributor(
            num_workers, strategy, launcher=LocalLauncher(), logs="none", progress=False, **options
        )
        return distributor.run(function, *args)

    return call


def server_of_this_task():
    """Return the process id of the fork server: the guardian's parent."""
    return psutil.Process(os.getppid()).ppid()


def is_server(pid):
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return SERVER in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    return False


def facts():
    """Return what a process finds at its start, and what decides what it finds."""
    kinds = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            kinds.append(os.readlink(f"/proc/self/fd/{name}").partition(":")[0])
    status = Path("/proc/self/status").read_text()
    return {
        "descriptors": sorted(kinds),
        "environment": dict(os.environ),
        "umask": status.partition("Umask:")[2].split()[0],
        "signals": [status.partition(f"Sig{kind}:")[2].split()[0] for kind in ("Blk", "Ign")],
        "folder": os.getcwd(),
        "argv": sys.argv,
        "path": sys.path[1:],
        "main": sorted(name for name in vars(sys.modules["__main__"]) if not name.startswith("_")),
        "command": psutil.Process().cmdline(),
        "leads_its_group": os.getpgid(0) == os.getpid(),
        "session": os.getsid(0) == os.getppid(),
    }


def test_nothing_of_one_job_is_seen_by_the_next(run):
    find_server, find_facts = server_of_this_task, facts

    def make_a_mess(ctx):
        import random

        os.environ["LEFT_BEHIND"] = "by the first job"
        os.chdir("/")
        os.umask(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.path.insert(1, "/left/behind")
        sys.argv.append("left behind")
        random.seed(0)
        open("/proc/self/status")  # noqa: SIM115 (it stays open)
        sys.modules["left_behind"] = sys
        return find_server()

    def look(ctx):
        assert "left_behind" not in sys.modules
        found = find_facts()
        assert found.pop("folder").startswith(str(ctx.work_dir.parent))
        return find_server(), found

    first = run(make_a_mess).value
    second, forked = run(look).value
    assert is_server(first)
    assert second == first
    _, started = run(look, launch_options=LaunchOptions(warm_seconds=0)).value
    for found in (forked, started):
        # Of the job, and of the processes themselves.
        for name in ("GRIDFLOW_AGENT_PID", "PYTEST_CURRENT_TEST", "TMPDIR"):
            found["environment"].pop(name, None)
        # A script's own names; a forked process has no script.
        found.pop("main")
    assert forked == started


def test_a_process_is_forked_from_a_server_that_has_looked_for_bugs_of_keras(run):
    find_server, is_one = server_of_this_task, is_server

    def look(ctx):
        import keras  # noqa: F401 (so the server imports it before it forks)

        return is_one(find_server())

    result = run(look, num_workers=2, strategy="multi_worker_mirrored")
    assert "instead of forking" not in result.logs(0) + result.logs(1)
    assert result.values == [True, True]


def test_each_process_draws_numbers_of_its_own(run, tmp_path):
    def draw(folder, attempt, ctx=None):
        import random

        import numpy as np
        import tensorflow as tf

        import keras

        drawn = [
            random.random(),
            np.random.rand(),  # noqa: NPY002 (that state is looked at)
            float(tf.random.uniform(())),
            float(keras.random.uniform(())),
        ]
        Path(folder, f"{attempt}-{os.getpid()}").write_text(" ".join(map(str, drawn)))

    for attempt in range(2):
        run(draw, str(tmp_path), attempt, num_workers=2, strategy="multi_worker_mirrored")
    rows = [path.read_text().split() for path in tmp_path.iterdir()]
    assert len(rows) == 4
    for numbers in zip(*rows, strict=True):
        assert len(set(numbers)) == 4


def test_a_module_that_was_edited_between_two_runs_is_the_new_one(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    find_server = server_of_this_task
    module = tmp_path / "edited_by_its_user.py"

    def use_it():
        import edited_by_its_user

        return edited_by_its_user.VALUE, find_server()

    module.write_text("VALUE = 'old'\n")
    old, first = run(use_it).value
    module.write_text("VALUE = 'newer'\n")
    new, second = run(use_it).value
    assert (old, new) == ("old", "newer")
    assert first == second


def test_a_restarted_group_comes_from_the_same_server(run):
    find_server = server_of_this_task

    def die_once(ctx):
        if not ctx.generation:
            Path(ctx.work_dir, "..", "server").resolve().write_text(str(find_server()))
            os.kill(os.getpid(), signal.SIGKILL)
        before = int(Path(ctx.work_dir, "..", "server").resolve().read_text())
        return before, find_server()

    result = run(die_once, max_restarts=1)
    before, after = result.value
    assert result.attempts[0].failure.signal == "SIGKILL"
    assert before == after


def test_training_goes_on_without_the_server_that_forked_it(run):
    find_server = server_of_this_task

    def kill_server(ctx):
        server = find_server()
        os.kill(server, signal.SIGKILL)
        print("it was killed")
        return server

    killed = run(kill_server).value
    again = run(lambda: find_server()).value
    assert again != killed
    assert is_server(again)
    assert not is_server(killed)


def test_a_server_that_is_frozen_is_ended_and_done_without(run):
    find_server = server_of_this_task
    frozen = run(lambda: find_server()).value
    os.kill(frozen, signal.SIGSTOP)
    result = run(lambda: "trained")
    assert result.value == "trained"
    assert "instead of forking one: the fork server is frozen" in result.logs(0)
    wait_for(lambda: not is_server(frozen), "the end of the server")


def test_a_server_is_ended_after_its_idle_time(run):
    find_server = server_of_this_task
    server = run(lambda: find_server(), launch_options=LaunchOptions(warm_seconds=0.5)).value
    wait_for(lambda: not is_server(server), "the end of the server")


def test_without_warm_seconds_there_is_no_server(run):
    find_server = server_of_this_task
    assert (
        run(lambda: find_server(), launch_options=LaunchOptions(warm_seconds=0)).value
        != os.getpid()
    )
    agent_of_started = run(
        lambda: " ".join(psutil.Process(find_server()).cmdline()),
        launch_options=LaunchOptions(warm_seconds=0),
    ).value
    assert "gridflow._agent.main" in agent_of_started


def test_a_worker_of_spark_is_an_agent_again_in_the_next_job(spark, monkeypatch):
    def agent(ctx):
        return int(os.environ["GRIDFLOW_AGENT_PID"])

    def agents():
        distributor = TensorflowDistributor(
            2, "none", launcher=SparkLauncher(spark), logs="none", progress=False
        )
        return set(distributor.run(agent).values)

    # Spark takes workers of the same environment: none that other tests have left idle.
    monkeypatch.setitem(spark.sparkContext.environment, "OF_THIS_TEST", "alone")
    assert agents() == agents()


THREAD = """
import sys, threading, time
if {"gridflow._agent.forkserver.server", "training"} <= set(sys.orig_argv):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


def test_a_process_with_a_strange_thread_is_never_forked(run, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(THREAD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    result = run(lambda: "trained")
    assert result.value == "trained"
    assert "instead of forking one: a thread named" in result.logs(0)


def test_whatever_is_initialised_is_a_reason_not_to_fork():
    script = """
        import sys, tensorflow as tf
        from gridflow._agent.forkserver import server
        known = server.threads()
        assert server.why_not(known) is None, server.why_not(known)
        tf.constant(1)
        print(server.why_not(known))
        print(server.why_not(server.threads()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["TensorFlow's context already exists"] * 2


def test_an_open_device_is_a_reason_not_to_fork(monkeypatch, tmp_path):
    monkeypatch.setattr(server, "_DEVICES", (str(tmp_path),))
    with (tmp_path / "nvidia0").open("w"):
        reason = server._open_device()
    assert str(tmp_path / "nvidia0") in reason


LIGHT = """
import importlib, sys
from gridflow._agent.forkserver import server
for name in server._LIGHT:
    importlib.import_module(name)
print(sorted({"numpy", "pyarrow", "keras", "tensorflow"} & set(sys.modules)))
"""


def test_what_every_process_imports_brings_no_library_with_threads():
    """Threads of a library that a server imports by itself are known to it; others aren't."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


LETS_GO = """
import numpy, pyarrow
from gridflow._agent.forkserver.server import let_go_of_code
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
told = let_go_of_code()
assert told > 10 << 20 and before - resident() > told / 2, (before, resident(), told)
assert numpy.linalg.inv(numpy.eye(3)).sum() == 3.0 and pyarrow.array([1, 2]).to_pylist() == [1, 2]
"""


def test_code_of_libraries_isnt_kept_mapped_and_still_runs():
    subprocess.run([sys.executable, "-c", LETS_GO], check=True, timeout=patience())


@pytest.fixture
def servers():
    """Give the servers of this process, and what a process from them would get."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    before = list(client._started)
    yield client.ForkServers(60, describe(), owner=os.getpid()), environment
    for started in [each for each in client._started if each not in before]:
        started.terminate()
        started.wait(patience())


def fork(servers, folder, **changes):
    """Have a process forked that waits for its agent; return its guardian, channel and output."""
    made, environment = servers
    channel, theirs = Channel.pair()
    output, their_output = os.pipe()
    with contextlib.ExitStack() as undo:
        undo.callback(channel.close)
        undo.callback(os.close, output)
        with theirs, os.fdopen(their_output):
            guardian = made.fork(
                [sys.executable, "-m", "gridflow._training.main"],
                packages=(),
                work_dir=folder,
                environment={**environment, **changes},
                descriptors=[their_output, theirs.fileno()],
                on_change=lambda: None,
            )
            hello = next(channel.receive())
        undo.pop_all()
    return guardian, channel, output, hello.pid


def end(guardian, channel, output):
    guardian.terminate()
    guardian.wait(patience())
    channel.close()
    os.close(output)


def wait_for_its_janitor_alone(server):
    wait_for(lambda: len(server.children()) == 1, "its janitor alone", seen=server.children)


def test_fifty_processes_leave_nothing_in_the_server(servers, tmp_path):
    seen = []
    for _ in range(51):
        guardian, channel, output, pid = fork(servers, tmp_path, FIFTY="of their own")
        server = psutil.Process(psutil.Process(pid).parent().ppid())
        end(guardian, channel, output)
        assert not psutil.pid_exists(pid)
        wait_for_its_janitor_alone(server)  # what forks shares memory with the server
        seen.append((server.pid, server.num_fds(), server.memory_full_info().uss))
    (first, _, before), (last, _, after) = seen[1], seen[-1]
    assert first == last
    assert after - before < 1 << 20
    # On a busy machine the server may still close what it had of the last one.
    fewest = [min(files for _, files, _ in part) for part in (seen[1:6], seen[-5:])]
    assert fewest[0] == fewest[1]


STARTS_A_SERVER = """
import os, sys
from gridflow._agent.environment import describe
from gridflow._agent.forkserver.client import ForkServers

ForkServers(60, describe(), owner=int(sys.argv[1])).load(dict(os.environ), [])
"""


def test_in_a_container_of_yarn_no_process_is_forked_where_nobody_counts_it(
    servers, tmp_path, monkeypatch
):
    words = [sys.executable, "-c", STARTS_A_SERVER, str(os.getpid())]
    environment = {**servers[1], "COUNTED": "by parents"}
    subprocess.run(words, env=environment, check=True, timeout=patience())
    # Its agent has ended; elsewhere that doesn't matter.
    guardian, channel, output, pid = fork(servers, tmp_path, COUNTED="by parents")
    orphan = psutil.Process(psutil.Process(pid).parent().ppid())
    assert orphan.ppid() != os.getpid()
    end(guardian, channel, output)
    monkeypatch.setenv("CONTAINER_ID", "container_1_1_1_2")
    guardian, channel, output, pid = fork(servers, tmp_path, COUNTED="by parents")
    assert psutil.Process(psutil.Process(pid).parent().ppid()).ppid() == os.getpid()
    end(guardian, channel, output)
    wait_for(lambda: not orphan.is_running(), "the end of the server")


def test_a_process_dies_with_what_it_started_when_its_agent_lets_go(servers, tmp_path):
    guardian, channel, output, pid = fork(servers, tmp_path)
    assert psutil.Process(pid).cmdline()[1:] == ["-m", "gridflow._training.main"]
    guardian._connection.shutdown(socket.SHUT_RDWR)  # as the kernel does when the agent dies
    wait_for(lambda: not psutil.pid_exists(pid), "the end of the process")
    end(guardian, channel, output)


def test_strangers_words_dont_disturb_the_server(servers, tmp_path, monkeypatch):
    guardian, channel, output, pid = fork(servers, tmp_path, STRANGERS="of their own")
    server = psutil.Process(psutil.Process(pid).parent().ppid())
    path = next(Path(word) for word in server.cmdline() if word.endswith(".socket"))
    assert path.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.chdir(path.parent)  # the whole path may be too long for a socket's address
    incomplete = b'\0\0\0\x0f{"kind":"fork"}'
    deep = b"\0\1\0\0" + b"[" * (1 << 16)
    for words in (b"", b"\0", b"\xff" * 4, b"\0\0\0\2[]", incomplete, b"x" * 9, deep):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path.name)
            stranger.sendall(words)
    end(guardian, channel, output)
    guardian, channel, output, pid = fork(servers, tmp_path, STRANGERS="of their own")
    assert psutil.Process(pid).parent().ppid() == server.pid
    end(guardian, channel, output)


def test_a_server_that_ends_just_now_is_replaced(servers, tmp_path, monkeypatch):
    send, left = client.messages.send, [BrokenPipeError()]

    def once_in_vain(*arguments):
        if left:
            raise left.pop()
        send(*arguments)

    monkeypatch.setattr(client.messages, "send", once_in_vain)
    guardian, channel, output, pid = fork(servers, tmp_path, ENDS="just now")
    assert is_server(psutil.Process(pid).parent().ppid())
    end(guardian, channel, output)


def test_another_environment_has_another_server_and_three_are_the_most(servers, tmp_path):
    found = []
    for value in "abcde":
        guardian, channel, output, pid = fork(servers, tmp_path, AN_IMPORT_MAY_READ_IT=value)
        found.append(psutil.Process(pid).parent().ppid())
        end(guardian, channel, output)
    assert len(set(found)) == 5
    wait_for(lambda: sum(map(is_server, found)) <= 3, "the end of all but three servers")
    assert is_server(found[-1])


def test_a_folder_that_others_can_write_to_is_refused(servers, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made, _ = servers
    folder = tmp_path / f"gridflow-forkserver-{os.getuid()}-{made._owner}-{made._owner_began}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(client.NotForked, match="other users can write"):
        fork(servers, tmp_path)


@pytest.mark.parametrize("text", ["", "-1", "12x", "9" * 30, None])
def test_a_server_whose_number_cannot_be_read_is_replaced(servers, tmp_path, text):
    guardian, channel, output, pid = fork(servers, tmp_path, NUMBERED="once")
    server = psutil.Process(psutil.Process(pid).parent().ppid())
    path = Path(next(word for word in server.cmdline() if word.endswith(".socket")) + ".pid")
    end(guardian, channel, output)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    found = set()
    for _ in range(2):
        guardian, channel, output, pid = fork(servers, tmp_path, NUMBERED="once")
        found.add(psutil.Process(pid).parent().ppid())
        end(guardian, channel, output)
    assert len(found - {server.pid}) == 1
    assert server.pid not in found
    wait_for(lambda: not is_server(server.pid), "the end of the server")


def test_a_full_disk_leaves_no_server_without_a_number(servers, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = list(client._started)
    monkeypatch.setattr(client, "write_whole", full)
    with pytest.raises(client.NotForked, match="No space left"):
        fork(servers, tmp_path, NUMBERED="never")
    (started,) = [each for each in client._started if each not in before]
    assert started.wait(patience()) == -signal.SIGKILL


def test_the_lock_of_a_frozen_agent_is_not_waited_for_for_ever(servers, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made, environment = servers
    monkeypatch.setattr(made, "_lock_seconds", 0.3)
    folder = tmp_path / f"gridflow-forkserver-{os.getuid()}-{made._owner}-{made._owner_began}"
    folder.mkdir(0o700)
    code = (
        "import fcntl, os, signal, sys; place = os.open(sys.argv[1], os.O_RDONLY)\n"
        "fcntl.flock(place, fcntl.LOCK_EX); print('locked', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    words = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        for _ in range(2):
            with pytest.raises(client.NotForked, match="frozen"):
                fork(servers, tmp_path)
        made.load(environment, ["tensorflow"])  # it returns
        holder.kill()
    end(*fork(servers, tmp_path)[:3])


DRIVER = """
import os, sys, time, psutil
from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor

def server():
    import os, psutil
    return psutil.Process(os.getppid()).ppid()

if sys.argv[1] == "application":
    from pyspark.sql import SparkSession
    builder = SparkSession.builder.master("local[1]").config("spark.driver.host", "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    launcher = SparkLauncher(spark)
else:
    launcher = LocalLauncher()
found = [
    TensorflowDistributor(1, launcher=launcher, logs="none", progress=False).run(server).value
    for _ in range(2)
]
print(*found, flush=True)
if sys.argv[1] == "application":
    spark.stop()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("target", ["driver", "application"])
def test_a_server_ends_with_its_driver_or_its_spark_application(target, tmp_path):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), target],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with driver:
        lines = iter(driver.stdout.readline, "")
        first, second = next(line.split() for line in lines if line[:1].isdigit())
        next(line for line in lines if "ready" in line)
        assert first == second
        if target == "driver":
            assert is_server(int(first))
        else:  # it ends at spark.stop(), while the driver goes on
            wait_for(lambda: not is_server(int(first)), "the end of the server")
        os.killpg(driver.pid, signal.SIGKILL)
    wait_for(lambda: not is_server(int(first)), "the end of the server")


def test_a_server_knows_its_owner_by_more_than_its_number(tmp_path):
    """Process ids are used again."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    listener.listen()
    server = ForkServer("training", tmp_path / "socket", listener, os.getpid(), 1, 60.0)
    try:
        assert not server._is_wanted()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        server._janitor.stdin.close()
        server._janitor.wait()
        listener.close()
