"""Observers are told what happens, each step once, and none of them harms a job."""

from __future__ import annotations

import threading

import pytest

from gridflow import InvalidArgument, LocalLauncher, TensorflowDistributor
from gridflow._coordinator.observing import Observed
from gridflow._coordinator.progress import JobReport, TaskProgress
from gridflow._spec.place import Place
from gridflow._wire.failures import TaskFailure
from gridflow.errors import TrainingFailed
from gridflow.observers import JobEnd, JobStart, Notify, Observer
from suite.waiting import wait_for


class Remembers(Observer):
    """Remembers what it is told, and raises if it is to."""

    def __init__(self, raises=None, until=None):
        self.told, self.places, self.threads = [], [], set()
        self._raises, self._until = raises, until

    def _take(self, what, *about):
        if self._until is not None:
            self._until.wait()
        self.told.append((what, *about))
        self.threads.add(threading.current_thread().name)
        if self._raises is not None:
            raise self._raises

    def metrics(self, step, values, task):
        self._take("metrics", step, values, task)

    def progress(self, task, progress):
        self.places.append((task, progress.place))

    def host(self, name, load):
        self._take("host", name, load)

    def epoch(self, number, values):
        self._take("epoch", number, values)

    def state(self, state):
        self._take("state", state)


def step(fit, epoch, number, loss=0.5, steps=4, phase="train"):
    return TaskProgress(Place(fit, epoch, number), steps, phase, {"loss": loss}, rows=8)


def test_steps_and_epochs_are_told_once_also_after_a_restart():
    seen = Remembers()
    observed = Observed([seen], print)
    before = [step(0, 0, 2), step(0, 0, 4), step(0, 1, 1), step(0, 1, 1, phase="test")]
    again = [step(0, 0, 3), step(0, 1, 1), step(0, 1, 3), step(1, 0, 2), step(1, 0, 2)]
    for report in before:
        observed.progress("worker:0", report)
    observed.epoch(0, 0, {"loss": 1.0})
    for report in again:
        observed.progress("worker:0", report)
    observed.epoch(0, 0, {"loss": 1.0})
    observed.epoch(0, 1, {"loss": 0.5})
    observed.close()
    assert [each[1] for each in seen.told if each[0] == "metrics"] == [2, 4, 5, 7, 9]
    assert [each[1] for each in seen.told if each[0] == "epoch"] == [0, 1]
    assert seen.places == [("worker:0", each.place) for each in (*before, *again)]
    assert seen.threads == {"gridflow-Remembers"}


def test_a_hosts_load_is_told_once_however_many_of_its_agents_measure_it():
    seen = Remembers()
    observed = Observed([seen], print)
    for at, host, values in [
        (0.0, "a", {"cpu": 1.0}),
        (0.5, "b", {"cpu": 2.0}),
        (1.0, "a", {"cpu": 3.0, "gpu": 4.0}),
        (2.0, "a", {"cpu": 5.0, "gpu": 6.0}),
        (10.0, "a", {"cpu": 7.0}),
    ]:
        observed.load(host, values, at)
    observed.close()
    assert [each[1:] for each in seen.told] == [
        ("a", {"cpu": 1.0}),
        ("b", {"cpu": 2.0}),
        ("a", {"gpu": 4.0}),
        ("a", {"cpu": 7.0}),
    ]


def test_a_new_driver_counts_the_epochs_before_its_checkpoint():
    seen = Remembers()
    observed = Observed([seen], print)
    observed.progress("worker:0", step(0, 2, 1, steps=10))
    observed.close()
    assert seen.told == [("metrics", 21, {"loss": 0.5}, "worker:0")]


def test_one_that_raises_is_said_once_without_passwords_and_told_of_everything_else():
    error = OSError("no network to https://me:secret@host/x")
    said, seen, other = [], Remembers(raises=error), Remembers()
    observed = Observed([seen, other], said.append)
    for state in ("gathering", "starting", "training"):
        observed.tell("state", state)
    observed.close()
    words = "no network to https://…@host/x"
    assert said == [f"Remembers.state() raised OSError: {words}. The job goes on"]
    assert len(seen.told) == len(other.told) == 3


def test_one_that_hangs_costs_metrics_and_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(Remembers, "patience", 0.2)
    monkeypatch.setattr("gridflow._coordinator.observing._MOST_WAITING", 10)
    goes_on, said = threading.Event(), []
    hangs, other = Remembers(until=goes_on), Remembers()
    observed = Observed([hangs, other], said.append)
    for number in range(100):
        observed.progress("worker:0", step(0, 0, number + 1))
        wait_for(lambda number=number: len(other.told) == number + 1, "the other one")
    observed.tell("state", "closing")
    observed.close()
    assert said == ["Remembers was given up: it has done nothing for 0.2 seconds"]
    goes_on.set()
    wait_for(lambda: ("state", "closing") in hangs.told, "what wasn't left out")
    assert said[1].startswith("Remembers is too slow: ")
    assert len(hangs.told) < 20


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Remembers(), "must be a list"),
        ("mlflow", "must be a list"),
        (["mlflo"], "unknown observer 'mlflo'"),
        ([Remembers], "objects whose classes inherit"),
        ([print], "objects whose classes inherit"),
    ],
)
def test_what_is_no_observer_is_refused_at_the_call(given, words):
    with pytest.raises(InvalidArgument, match=words):
        TensorflowDistributor(launcher=LocalLauncher(), observers=given)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "url= or command="),
        ({"url": "ftp://host"}, "must begin with https"),
        ({"command": "mail me"}, "a list of words"),
        ({"command": ["mail", ""]}, "a list of words"),
        ({"url": "http://host", "on": "success"}, "'end' or 'failure'"),
    ],
)
def test_what_cannot_notify_is_refused(options, words):
    with pytest.raises(InvalidArgument, match=words):
        Notify(**options)


@pytest.mark.parametrize("on", ["end", "failure"])
def test_a_notification_names_job_failure_and_metrics(tmp_path, on):
    path = tmp_path / "said"
    notify = Notify(command=["sh", "-c", f"cat >> {path}"], on=on)
    notify.begin(JobStart("a1", "monday", tmp_path, ("worker:0",), {}))
    report = JobReport("failed", 1, {}, 2, {"loss": [0.5, 0.25]}, (), None)
    error = TrainingFailed("no", failures=(TaskFailure("worker:1", "h", "exception", "it broke"),))
    notify.end(JobEnd("failed", error, 61.25, report))
    import json

    assert json.loads(path.read_text()) == {
        "text": "Job monday has failed after 61 s: worker:1: it broke",
        "job": "a1",
        "run_id": "monday",
        "state": "failed",
        "seconds": 61.2,
        "error": "TrainingFailed",
        "task": "worker:1",
        "metrics": {"loss": 0.25},
    }
    path.unlink()
    notify.end(JobEnd("succeeded", None, 1.0, report))
    assert path.exists() is (on == "end")


def test_observers_of_other_packages_go_by_their_names(monkeypatch):
    class Brought:
        name = "brought"

        def load(self):
            return Remembers

    monkeypatch.setattr("gridflow._spec.brought.entry_points", lambda group: [Brought()])
    job = TensorflowDistributor(launcher=LocalLauncher(), observers=["brought"])
    assert [type(each) for each in job._observers] == [Remembers]
    with pytest.raises(InvalidArgument, match="Did you mean 'brought'"):
        TensorflowDistributor(launcher=LocalLauncher(), observers=["brough"])
