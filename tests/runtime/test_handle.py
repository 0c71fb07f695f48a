"""A running job: asked, waited for, ended from outside."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from gridflow import JobCancelled, LocalLauncher, TensorflowDistributor, errors
from gridflow._coordinator import executor_coordinator
from gridflow._handle import JobHandle
from suite.waiting import patience, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def distributor(distribute):
    return distribute()


def waits(ctx, folder):
    """Say that it is here, make steps, and wait to be told to go on."""
    from pathlib import Path

    print(f"{ctx.task} is here", flush=True)
    Path(folder, f"new-{ctx.rank}").write_text(str(os.getpid()))
    Path(folder, f"new-{ctx.rank}").rename(Path(folder, f"here-{ctx.rank}"))
    step = 0
    while not Path(folder, "go").exists():
        step += 1
        ctx.report(step, loss=0.5)
        time.sleep(0.05)
    return ctx.rank


def test_a_job_is_asked_and_waited_for_while_it_runs(distributor, tmp_path):
    handle = distributor.start(waits, str(tmp_path))
    handle.wait_until("training", timeout=patience())
    assert handle.state == "training"
    assert not handle.done()
    with pytest.raises(TimeoutError, match="the job is training"):
        handle.result(timeout=0.1)
    both = {"worker:0", "worker:1"}
    wait_for(lambda: set(handle.report.tasks) == both, "both", seen=lambda: handle.report)
    report = handle.report
    assert report.state == "training"
    assert report.tasks["worker:1"].place.step >= 1
    assert report.tasks["worker:1"].logs == {"loss": 0.5}
    assert handle.logs("worker:1") == "worker:1 is here\n"
    stacks = handle.stacks(timeout=patience())
    assert set(stacks) == both
    assert all("in waits\n" in stack.partition("gridflow-")[0] for stack in stacks.values())
    assert re.search(r"training<.*worker:1<.*train<", handle._repr_html_(), re.DOTALL)
    (tmp_path / "go").touch()
    assert handle.result(timeout=patience()).values == [0, 1]
    assert handle.state == "succeeded"
    handle.wait_until("evaluating")  # it never was, and nobody waits for ever
    assert handle.stacks() == {}
    handle.cancel()
    assert handle.result().values == [0, 1]
    with pytest.raises(errors.InvalidArgument, match="Did you mean 'training'"):
        handle.wait_until("trainin")
    with pytest.raises(errors.InvalidArgument, match="timeout must be"):
        handle.stacks(timeout=0)
    with pytest.raises(errors.InvalidArgument, match=r"there are worker:0, worker:1"):
        handle.logs("worker:7")


def test_a_job_that_is_cancelled_ends_with_all_that_it_started(distributor, tmp_path):
    handle = distributor.start(waits, str(tmp_path))
    wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 2, "both ranks")
    pids = [int(path.read_text()) for path in tmp_path.glob("here-*")]
    handle.cancel()
    with pytest.raises(JobCancelled, match="was cancelled in state training"):
        handle.result(timeout=patience())
    assert handle.state == "cancelled"
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_task_that_is_stopped_has_no_stack_and_the_others_have_theirs(distributor, tmp_path):
    handle = distributor.start(waits, str(tmp_path))
    wait_for(lambda: len(list(tmp_path.glob("here-*"))) == 2, "both ranks")
    stopped = psutil.Process(int((tmp_path / "here-1").read_text()))
    stopped.suspend()
    try:
        stacks = wait_for(lambda: (told := handle.stacks(2))["worker:0"] and told, "an answer")
        assert "in waits\n" in stacks["worker:0"]
        assert stacks["worker:1"] is None
    finally:
        stopped.resume()
        (tmp_path / "go").touch()
    assert handle.result(timeout=patience()).values == [0, 1]


def test_two_jobs_of_one_distributor_run_at_the_same_time(tmp_path):
    distributor = TensorflowDistributor(
        launcher=LocalLauncher(), strategy="none", logs="none", progress=False
    )
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()

    async def both():
        handles = [distributor.start(waits, str(folder)) for folder in folders]
        for handle, folder in zip(handles, folders, strict=True):
            await asyncio.to_thread(handle.wait_until, "training", patience())
            await asyncio.to_thread(wait_for, (folder / "here-0").exists, "its function")
        for folder in folders:
            (folder / "go").touch()
        return [await handle for handle in handles]

    one, other = asyncio.run(both())
    assert one.job_dir != other.job_dir
    assert [one.value, other.value] == [0, 0]


def test_what_a_job_fails_with_is_raised_by_whoever_asks():
    distributor = TensorflowDistributor(launcher=LocalLauncher(), logs="none", progress=False)

    def fails(ctx):
        raise ValueError("no")

    handle = distributor.start(fails)
    for ask in (handle.result, lambda: handle.wait_until("evaluating")):
        with pytest.raises(errors.TrainingFailed, match="ValueError: no"):
            ask()
    assert handle.state == "failed"
    assert re.search(r">failed<.*TrainingFailed: .*ValueError: no", handle._repr_html_(), re.DOTALL)


def run_program(text, folder):
    """Run a program that is given a folder; return what it printed."""
    script = folder / "program.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        check=True,
        capture_output=True,
        text=True,
        timeout=patience(),
    )
    return done.stdout


PROGRAM = """
import sys, time
from gridflow import Deadlines, LocalLauncher, TensorflowDistributor

def waits(folder):
    import os, time
    from pathlib import Path
    Path(folder, "new").write_text(str(os.getpid()))
    Path(folder, "new").rename(Path(folder, "pid"))
    time.sleep(600)

if __name__ == "__main__":
    distributor = TensorflowDistributor(
        launcher=LocalLauncher(), progress=False, deadlines=Deadlines(heartbeat=300, shutdown=300)
    )
    handle = distributor.start(waits, sys.argv[1])
    while not list(__import__("pathlib").Path(sys.argv[1]).glob("pid")):
        time.sleep(0.05)
    print("the script is over")
"""


def test_a_script_that_is_over_ends_the_jobs_that_it_started(tmp_path):
    # Its tasks are heard to the end: nothing is waited for in vain.
    printed = run_program(PROGRAM, tmp_path)
    assert "the script is over" in printed
    assert "cancelled: ending all tasks" in printed
    assert not psutil.pid_exists(int(Path(tmp_path, "pid").read_text()))


INTERRUPTED = """
import signal, threading, time
from pathlib import Path
from gridflow import LocalLauncher, TensorflowDistributor

def waits(folder):
    import time
    from pathlib import Path
    Path(folder, "here").touch()
    time.sleep(600)

def interrupt(folder):
    while not Path(folder, "here").exists():
        time.sleep(0.05)
    # As the kernel may do with Ctrl-C: the main thread isn't woken by it.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

if __name__ == "__main__":
    import sys
    threading.Thread(target=interrupt, args=sys.argv[1:], daemon=True).start()
    try:
        TensorflowDistributor(launcher=LocalLauncher(), progress=False).run(waits, sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted in order")
"""


def test_ctrl_c_is_heard_whichever_thread_it_is_delivered_to(tmp_path):
    printed = run_program(INTERRUPTED, tmp_path)
    assert "interrupted in order" in printed


class Run:
    """A run that ends with an error once it is cancelled."""

    job = state = None

    def __init__(self, error):
        self.error, self.is_cancelled = error, threading.Event()

    def run(self):
        self.is_cancelled.wait(patience())
        raise self.error

    def cancel(self):
        self.is_cancelled.set()

    def wake(self):
        pass


def test_a_job_that_is_cancelled_while_its_coordinator_moves_to_the_executors_ends(
    tmp_path, monkeypatch
):
    moved = Run(JobCancelled("cancelled"))
    monkeypatch.setattr(executor_coordinator, "inside_of", lambda *_: moved)
    handle = JobHandle(Run(errors.ClientUnreachable("no way")), LocalLauncher(), tmp_path)
    handle.cancel()
    wait_for(moved.is_cancelled.is_set, "the other run to be cancelled")
    with pytest.raises(JobCancelled):
        handle.result(patience())
