"""What agents report is taken, each report once, whatever becomes of the others."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading

import pytest

from gridflow._coordinator import events as ev
from gridflow._coordinator.console import Console
from gridflow._coordinator.journal import Journal
from gridflow._coordinator.observing import Observed
from gridflow._coordinator.rpc_handler import RpcHandler
from gridflow._features.checkpoints.store import CheckpointStore
from gridflow._spec.cluster import Task
from gridflow._spec.job import parts_of
from gridflow._wire.commands import Start
from gridflow._wire.reports import Succeeded
from suite.waiting import wait_for

TASKS = (Task("worker", 0), Task("worker", 1))
SUCCEEDED = {"kind": "succeeded", "generation": 0, "result": {"kind": "none", "files": []}}
LINES = {"kind": "log", "lines": ["a line"]}


class Heard:
    """A desk with one agent per rank, and the reports that it was sent."""

    def __init__(self, folder, logs="all"):
        console = Console(TASKS, folder / "logs", logs=logs, progress=False)
        parts = parts_of(TASKS, "none")
        store, journal = CheckpointStore(folder / "checkpoints"), Journal(folder)
        self.desk = RpcHandler(parts, folder, store, console, journal, Observed((), console.say))
        self.console = console
        self.desk.new_launch(1, 0, 2)
        self._sent = 0
        for rank in range(len(TASKS)):
            about = {"host": "h", "address": f"h:{rank}", "environment": {}}
            self.desk.register({"rank": rank, "agent": f"a{rank}", "launch": 1, **about})

    def __call__(self, *reports):
        numbered = [{**each, "seq": self._sent + i + 1} for i, each in enumerate(reports)]
        self._sent += len(reports)
        me = {"rank": 0, "agent": "a0", "launch": 1, "done": 0}
        return self.desk.sync({**me, "reports": numbered})

    def events(self, kind):
        found = []
        while True:
            try:
                found.append(self.desk.events.get_nowait())
            except queue.Empty:
                return [each for each in found if isinstance(getattr(each, "report", each), kind)]


def test_what_is_not_finite_is_said_once_and_holds_until_the_next_generation(tmp_path, capsys):
    heard = Heard(tmp_path)
    told = {"kind": "not_finite", "generation": 0, "place": [0, 1, 4], "variable": "dense/kernel"}
    heard(told, {**told, "place": [0, 1, 5]})
    heard.console.close()
    assert heard.desk.notes.not_finite.place == (0, 1, 4)
    assert capsys.readouterr().out.count("worker:0: variable 'dense/kernel' isn't finite") == 1
    heard.desk.start(Start(1, ("h:0", "h:1"), None, None))
    assert heard.desk.notes.not_finite is None


@pytest.fixture
def heard(tmp_path):
    heard = Heard(tmp_path)
    yield heard
    heard.console.close()


def test_a_full_disk_is_reported_once_and_ends_nothing(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").symlink_to("/dev/full")
    heard = Heard(tmp_path)
    assert heard(LINES, SUCCEEDED)["heard"] == 2
    heard(LINES)
    heard.console.close()
    assert heard.desk.results[0]["kind"] == "none"
    assert len(heard.events(Succeeded)) == 1
    out = capsys.readouterr().out
    assert out.count("worker:0: lines are missing from") == 1
    assert "No space left on device" in out
    assert out.count("[worker:0] a line") == 2


def test_a_disk_that_hangs_holds_lines_back_for_a_while_and_no_heartbeat(tmp_path, monkeypatch):
    monkeypatch.setattr("gridflow._coordinator.console._MOST_KEPT", 1 << 16)
    monkeypatch.setattr("gridflow._coordinator.console._DISK_PATIENCE", 1.0)
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "worker-0.log")
    disk = os.open(tmp_path / "logs" / "worker-0.log", os.O_RDONLY | os.O_NONBLOCK)
    heard = Heard(tmp_path, logs="none")
    full = {"kind": "log", "lines": ["x" * 1000] * 200}
    assert heard(full)["heard"] == 1  # more than a pipe holds
    # Lines aren't heard now, nor what comes behind them: the agent sends them again.
    reports = [{**each, "seq": seq} for seq, each in enumerate((SUCCEEDED, LINES, SUCCEEDED), 2)]
    me = {"rank": 0, "agent": "a0", "launch": 1, "done": 0}
    assert heard.desk.sync({**me, "reports": reports})["heard"] == 2
    # For a second: then they are dropped, and counted.
    wait_for(lambda: heard.desk.sync({**me, "reports": reports})["heard"] == 4, "all reports")
    assert len(heard.events(type(None))) > 2
    os.set_blocking(disk, True)
    with os.fdopen(disk) as file:
        closing = threading.Thread(target=heard.console.close)
        closing.start()
        lines = file.read().splitlines()
        closing.join()
    assert lines == [*full["lines"], "[gridflow] lines missing here: 1"]


def test_where_nobody_reads_any_more_the_job_goes_on(heard, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    pipe = os.fdopen(write, "w")
    monkeypatch.setattr(sys, "stdout", pipe)
    heard(LINES, SUCCEEDED, LINES)
    heard.console.close()
    monkeypatch.undo()
    assert len(heard.events(Succeeded)) == 1
    assert heard.console.paths[TASKS[0]].read_text() == "a line\na line\n"
    with contextlib.suppress(BrokenPipeError):  # what it still held
        pipe.close()


def test_a_report_that_can_not_be_taken_ends_the_job_and_no_other_is_lost(heard):
    heard({"kind": "spooled", "counts": "?"}, SUCCEEDED)
    (failed,) = heard.events(ev.DriverFailed)
    assert "failed to handle the report 'spooled' of worker:0: " in str(failed.error)
    assert heard.desk.results[0]["kind"] == "none"


class Moment(queue.SimpleQueue):
    """Events; when an agent is heard of, a new launch begins, as soon as it may."""

    def __init__(self, desk):
        self.begins = threading.Thread(target=desk.new_launch, args=(2, 1, 2))

    def put(self, event):
        super().put(event)
        if isinstance(event, ev.Heard) and event.report is None:
            self.begins.start()
            self.begins.join(0.2)  # it has begun, or has to wait until the reports are taken


@pytest.mark.parametrize(
    "report",
    [
        {"kind": "receiving", "stream": "s", "address": "h:1", "together": False},
        {"kind": "feeding_stopped"},
        {"kind": "spooled", "counts": {"train": {"rows_in": 1, "rows": 1}}, "specs": {}},
    ],
    ids=lambda each: each["kind"],
)
def test_what_an_agent_reports_just_as_a_new_launch_begins_counts_for_its_own(heard, report):
    desk = heard.desk
    desk.events = Moment(desk)
    before = desk._streams, desk._rows
    heard({"generation": 0, **report} if report["kind"] == "feeding_stopped" else report)
    desk.events.begins.join()
    assert (desk._streams is before[0], desk._rows is before[1]) == (False, False)
    assert desk.silent_tasks("s") == ["worker:0", "worker:1"]
    assert desk._rows.counts == []
    # What has ended stays so, if it did in the launch before: then it was heard in time.
    assert desk._streams.has_ended == (report["kind"] == "feeding_stopped")


def test_checkpoints_that_have_come_are_told_to_those_who_keep_rows_for_them(heard, tmp_path):
    desk = heard.desk
    me = {"rank": 0, "agent": "a0", "launch": 1}
    header = {**me, "kind": "checkpoint", "generation": 0, "place": [0, 1, 0], "label": None}

    def commit():
        path = desk.receive_file(header)
        path.write_bytes(b"a checkpoint")
        desk.file_received(header, path)
        sent = desk.sync({**me, "reports": [], "done": 0})["commands"]
        return [each["place"] for each in sent if each["kind"] == "committed"]

    assert commit() == []  # nobody takes rows
    heard({"kind": "receiving", "stream": "s", "address": "h:1", "together": False})
    assert commit() == [(0, 1, 0)]
