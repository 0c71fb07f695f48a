"""Rows that give way to the start of the training, and stop doing so in time."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import pytest

from gridflow._features.rows import agent as borrowing
from gridflow._features.rows.agent import Backpressure
from gridflow._files import procfs
from gridflow._wire import child
from suite.waiting import patience

MIB = 1 << 20


@pytest.fixture
def host(monkeypatch):
    """Give a host whose tasks have waited for half a second more at each look, or another time."""
    host, looks = SimpleNamespace(share=0.5, now=1.0), itertools.count()
    monkeypatch.setattr(borrowing, "time", SimpleNamespace(monotonic=lambda: host.now))
    monkeypatch.setattr(procfs, "waited_for_processors", lambda: next(looks) * host.share)
    monkeypatch.setattr(borrowing, "_LOOK_SECONDS", -1.0)
    return host


class Noted(threading.Event):
    """Notes how long it is waited for, and doesn't take that long."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        return super().wait(0.001)


def feature(*, runs_function=True):
    spec = SimpleNamespace(parts=[SimpleNamespace(runs_function=runs_function)])
    return Backpressure(SimpleNamespace(payload=SimpleNamespace(spec=spec), rank=0))


def rests(given, batches):
    """Return the rests of the thread that reads so many batches of a mebibyte."""
    hurry, given._hurry = given._hurry, Noted()
    if hurry.is_set():
        given._hurry.set()
    for _ in range(batches):
        given.read(MIB)
    return given._hurry.waits


def test_rows_rest_while_others_wait_for_a_processor(host):
    given = feature()
    assert rests(given, 1) == []  # the first steps need rows
    assert len(rests(given, 5)) >= 4
    host.share = 0.0
    assert len(rests(given, 100)) <= 1


def test_a_batch_that_took_long_is_followed_by_a_longer_rest(host):
    given = feature()
    rests(given, 4)
    host.now += 0.5
    (rest,) = rests(given, 1)
    assert rest == pytest.approx(8 * 0.5)


def test_a_start_that_waits_for_something_else_now_and_then_is_left_in_peace(host):
    given = feature()
    first, *_, last = rests(given, 6)
    assert last >= 8 * first


def hear_that_rows_are_needed(given):
    assert given.hear(child.RowsAwaited())


@pytest.mark.parametrize("end", [hear_that_rows_are_needed, Backpressure.close])
def test_who_waits_for_rows_and_the_jobs_end_end_the_rest_at_once(host, monkeypatch, end):
    monkeypatch.setattr(borrowing, "_LEAST_REST_SECONDS", 120.0)
    monkeypatch.setattr(borrowing, "_MOST_SECONDS", 60.0)
    given = feature()
    resting = threading.Thread(target=lambda: [given.read(MIB) for _ in range(100)], daemon=True)
    resting.start()
    assert not given.hear(child.Leave())
    end(given)
    resting.join(patience())
    assert not resting.is_alive()


def test_a_process_that_never_asks_for_its_rows_delays_them_by_seconds(host, monkeypatch):
    given = feature()
    assert len(rests(given, 5)) >= 2
    host.now += borrowing._MOST_SECONDS + 0.1
    assert rests(given, 100) == []


def test_rows_of_a_server_do_not_rest_as_others_wait_for_them(host):
    assert rests(feature(runs_function=False), 100) == []


def test_a_kernel_that_does_not_tell_lets_rows_come_as_they_do(monkeypatch, tmp_path):
    monkeypatch.setattr(procfs, "_PRESSURE", tmp_path / "cpu")
    assert procfs.waited_for_processors() is None
    assert rests(feature(), 100) == []
    (tmp_path / "cpu").write_text("some avg10=1.00 avg60=2.00 avg300=3.00 total=1500000\n")
    assert procfs.waited_for_processors() == 1.5
    (tmp_path / "cpu").write_text("")
    assert procfs.waited_for_processors() is None
