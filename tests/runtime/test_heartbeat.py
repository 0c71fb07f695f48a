"""An agent that is busy is no dead agent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gridflow import Deadlines, LaunchOptions, LocalLauncher, TensorflowDistributor
from gridflow._agent.process import ProcessSupervisor
from gridflow._coordinator.loop import JobRun
from gridflow._spec.place import Place
from gridflow._wire.child import MadeCheckpoint, Returned
from gridflow._wire.reports import Failed, Succeeded
from gridflow.errors import WireError
from suite.waiting import patience

pytestmark = pytest.mark.slow


class Reports:
    """Takes reports as a reporter does."""

    def __init__(self):
        self.kinds = []

    def report(self, report):
        self.kinds.append(report)

    def lines(self, lines):
        self.kinds.append(lines)


class LateUploads:
    """Uploads whose results come when they are asked for."""

    def __init__(self):
        self.waiting = []

    def file(self, path, header, done):
        self.waiting.append(done)

    checkpoint = file

    def after(self, done):
        self.waiting.append(done)

    def catch_up(self):
        pass


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.timeout(120)
def test_a_large_checkpoint_on_its_way_looks_like_no_death(monkeypatch, tmp_path):
    """The download of a resume, and the wait for uploads, take longer than Deadlines.heartbeat."""

    def train(ctx):
        import keras

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((32, 4), "float32")
        model.fit(x, x.sum(axis=1), epochs=2, verbose=0, callbacks=ctx.callbacks())
        if ctx.generation == 0:
            time.sleep(1)
            raise RuntimeError("once")
        return ctx.generation

    # In the agents, which are processes of their own: each transfer of a checkpoint is slow.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'gridflow._agent.main' in ' '.join(sys.orig_argv):\n"
        "    import time\n"
        "    from gridflow._wire import client\n"
        "    download = client.CoordinatorClient.download\n"
        "    def slow(self, header, path):\n"
        "        time.sleep(5 if header['kind'] == 'checkpoint' else 0)\n"
        "        download(self, header, path)\n"
        "    client.CoordinatorClient.download = slow\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    distributor = TensorflowDistributor(
        1,
        launcher=LocalLauncher(),
        deadlines=Deadlines(heartbeat=2),
        max_restarts=1,
        launch_options=LaunchOptions(
            warm_seconds=0
        ),  # an agent of its own, that reads the file above
        logs="none",
        progress=False,
    )
    result = distributor.run(train)
    assert result.value == 1
    assert [each.failure and each.failure.kind for each in result.attempts] == ["exception", None]


@pytest.mark.usefixtures("no_leaks")
def test_a_driver_that_is_busy_has_heard_its_agents_meanwhile(monkeypatch):
    """It reads a checkpoint for longer than Deadlines.heartbeat, while agents go on to call."""

    def train(ctx):
        time.sleep(1)
        if ctx.generation == 0 and ctx.rank == 0:
            raise RuntimeError("once")
        return ctx.generation

    latest = JobRun._latest_checkpoint

    def slow(self, **options):
        time.sleep(5 if self._machine.generation else 0)
        return latest(self, **options)

    monkeypatch.setattr(JobRun, "_latest_checkpoint", slow)
    options = {
        "deadlines": Deadlines(heartbeat=2),
        "max_restarts": 1,
        "logs": "none",
        "progress": False,
    }
    result = TensorflowDistributor(3, "none", launcher=LocalLauncher(), **options).run(train)
    assert [each.failure and each.failure.kind for each in result.attempts] == ["exception", None]


def test_what_fails_late_of_a_life_that_is_over_says_nothing_of_the_next():
    reports, uploads = Reports(), LateUploads()
    options = {"serves": False, "reporter": reports, "uploads": uploads, "frozen_after": 9.0}
    lives = [
        ProcessSupervisor("worker:0", 0, 0, on_imported=list, on_other=print, **options)
        for _ in range(2)
    ]
    result = {"kind": "pickle", "files": ["value"]}
    for life in lives:
        life._take(Returned(result, "/nowhere", []))
    lives[0].end()
    failed, succeeds = uploads.waiting
    failed(OSError("the connection broke"))
    assert reports.kinds == []
    succeeds(None)
    assert reports.kinds == [Succeeded(0, result)]


#: A job of two in a driver of its own, whose Deadlines.heartbeat is shorter than the pause.
PAUSED = """
import ctypes, threading
from gridflow import Deadlines, LocalLauncher, TensorflowDistributor

def train(ctx, seconds):
    import time
    print("at work", flush=True)
    time.sleep(seconds)
    return ctx.generation

options = {"logs": "chief", "progress": False, "deadlines": Deadlines(heartbeat=2)}
distributor = TensorflowDistributor(2, "none", launcher=LocalLauncher(), **options)
"""
HOLDS_THE_GIL = """
holds = lambda: ctypes.PyDLL(None).sleep(6)  # unlike CDLL's, with the GIL
threading.Timer(4, holds).start()
print("value", distributor.run(train, 12).value)
"""


def test_a_driver_that_holds_the_gil_for_longer_than_its_heartbeat_loses_no_agent():
    done = subprocess.run(
        [sys.executable, "-c", PAUSED + HOLDS_THE_GIL],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert "value 0" in done.stdout, done.stdout + done.stderr
    assert "[gridflow] the driver stood still for 6 seconds" in done.stdout


@pytest.mark.timeout(120)
def test_a_driver_that_was_stopped_finds_its_agents_alive_when_it_goes_on():
    run = 'print("value", distributor.run(train, 10).value)'
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED + run],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as driver:
        try:
            for line in driver.stdout:
                if "at work" in line:
                    break
            driver.send_signal(signal.SIGSTOP)
            time.sleep(6)  # of which gridflow allows itself two
            driver.send_signal(signal.SIGCONT)
            rest = driver.stdout.read()
        finally:
            driver.kill()
    assert "value 0" in rest, rest
    assert "the driver stood still for" in rest


@pytest.mark.parametrize(("label", "fails"), [("rows-2", True), (None, False)])
def test_a_checkpoint_that_does_not_arrive_fails_the_task_if_a_section_waits_for_it(label, fails):
    reports, uploads = Reports(), LateUploads()
    options = {"serves": False, "reporter": reports, "uploads": uploads, "frozen_after": 9.0}
    life = ProcessSupervisor("worker:0", 0, 0, on_imported=list, on_other=print, **options)
    life._take(MadeCheckpoint("/nowhere", Place(0, 0, 2), label))
    uploads.waiting[0](WireError("it broke off"))
    line, *failed = reports.kinds
    assert line == ["gridflow: can't send a checkpoint: it broke off"]
    assert [type(each) for each in failed] == [Failed] * fails


@pytest.mark.parametrize(("label", "told"), [("rows-2", True), (None, False)])
def test_a_checkpoint_that_a_newer_one_has_replaced_is_not_missed(label, told, tmp_path):
    reports, uploads = Reports(), LateUploads()
    options = {"serves": False, "reporter": reports, "uploads": uploads, "frozen_after": 9.0}
    life = ProcessSupervisor("worker:0", 0, 0, on_imported=list, on_other=print, **options)
    for name, gone in (("replaced", FileNotFoundError("replaced")), ("there", OSError("full"))):
        path = tmp_path / name
        life._take(MadeCheckpoint(str(path), Place(0, 0, 2), label))
        uploads.waiting.pop(0)(gone)
    said = [each for each in reports.kinds if isinstance(each, list)]
    missed = ["gridflow: can't send a checkpoint: replaced"]
    assert said == [missed] * told + [["gridflow: can't send a checkpoint: full"]]
