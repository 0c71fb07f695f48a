"""A job's folder as a page and in a terminal, while it runs, after it has ended, after a kill."""

from __future__ import annotations

import json
import os

import pytest
from test_stimuli import AGENTS, failed, record, started

from gridflow import cli, errors
from gridflow._coordinator import events as ev
from gridflow._coordinator import report
from gridflow._coordinator.journal import Journal
from gridflow._coordinator.progress import TaskProgress
from gridflow._spec.exits import Exit
from gridflow._spec.place import Place
from gridflow._wire.reports import Cleared

SPENT = {
    "total": 20.0,
    "steps": 100.0,
    "rows": 8.0,
    "ranks": 2.0,
    "callbacks": 0.0,
    "batch_callbacks": 0.0,
    "checkpoints": 0.0,
    "validation": 0.0,
    "source": 8.0,
    "arriving": 0.0,
    "rows_a_step": 32.0,
}
EVIL = "<script>alert('x')</script>\x1b[2J"


@pytest.fixture
def folder(tmp_path):
    """Give the folder of a job that has failed once, and trains again."""
    folder = tmp_path / "flights"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "worker-1.log").write_text("".join(f"line {n} {EVIL}\n" for n in range(99)))

    def trains(journal):
        for second in range(20):
            for rank in (0, 1):
                loss = {"loss": 1 / (1 + second)}
                rows = 320 * (1 + second)
                step = TaskProgress(Place(0, 0, second), 40, "train", loss, SPENT, rows)
                journal.progress(50.0 + second, rank, step)
        journal.epoch(70.0, 0, 0, {"loss": 0.5, "val_loss": 0.6, EVIL: 1.0})
        journal.progress(70.5, 0, TaskProgress(Place(0, 0, 0), None, "test", {}))

    cleared = [ev.Heard(41.0, sender, Cleared(generation=0)) for sender in AGENTS]
    record(folder, [*started(), failed(25.0, 1, f"ValueError: {EVIL}"), *cleared], then=trains)
    return folder


def run_by(folder, pid, **result):
    """Note which process runs the job, or how it has ended."""
    from gridflow._files.procfs import began

    driver = {"host": os.uname().nodename, "pid": pid, "began": began(pid)}
    (folder / "driver.json").write_text(json.dumps(driver))
    if result:
        (folder / "result.json").write_text(json.dumps({"version": 1, **result}))


def test_a_page_shows_tasks_events_curves_and_logs_and_loads_nothing(folder):
    run_by(folder, os.getppid())
    page = report.page(report.read(folder))
    assert "http-equiv='refresh'" in page
    assert "<td>host-1</td>" in page
    assert "epoch 1, step 19 of 40" in page
    assert "<td>320</td>" in page  # a second
    assert "aria-label='computing 50%, rows 40%, ranks 10%'" in page
    assert "waits for rows 40% of the time" in page
    assert page.index("worker:1 fails, exception: ValueError:") < page.index("Logs")
    assert "the last 40 lines" in page
    assert "line 59" in page
    assert "line 58" not in page
    assert "aria-label='loss, from 0.05 to 1 over" in page
    for part in ("<script", "\x1b", "src=", "href=", "url(", "@import"):
        assert part not in page


def test_a_page_of_a_job_that_has_ended_is_not_refreshed_and_says_how(folder, capsys):
    error = {"kind": "TrainingFailed", "message": "worker:1: no", "first": None}
    run_by(folder, os.getpid(), state="failed", seconds=99.5, error=error, exit_code=65)
    assert cli.main(["report", str(folder), "--follow"]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    page = (folder / "report.html").read_text()
    assert "refresh" not in page
    assert "TrainingFailed, exit code 65" in page
    assert "worker:1: no" in page


def test_a_driver_that_is_gone_without_a_result_was_killed(folder):
    (folder / "driver.json").write_text(
        json.dumps({"host": os.uname().nodename, "pid": 1, "began": 1})
    )
    assert report.read(folder).state == "killed"


def test_a_terminal_shows_the_same(folder, capsys):
    run_by(folder, os.getppid())
    assert cli.main(["top", str(folder)]) == 0  # no terminal: once
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["worker:1", "host-1", "train", "epoch", "1,", "step", "19", "of", "40"] in [
        line[:9] for line in lines
    ]
    assert "computing 50%  rows 40%  ranks 10%" in shown
    assert "reading them takes that long" in shown


def test_a_large_job_makes_no_large_page(tmp_path):
    journal = Journal(tmp_path)
    tasks = [f"worker:{rank}" for rank in range(64)]
    journal.put({"tasks": tasks, "strategy": "multi_worker_mirrored"})
    for step in range(10_000):
        progress = TaskProgress(Place(0, 0, step), None, "train", {"loss": 1.0}, SPENT, 1)
        journal.progress(step * 0.5, step % 64, progress)
        if not step % 1000:
            journal._outlet.wait_for_room()
    journal.close()
    page = report.page(report.read(tmp_path))
    assert page.count("<th scope='row'>") == 64
    assert len(page) < 200_000


def test_without_a_job_it_is_said_where_to_look(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for words in (["report"], ["top"], ["report", str(tmp_path)], ["top", "/nowhere"]):
        assert cli.main(words) == Exit.USAGE
        assert "gridflow jobs" in capsys.readouterr().err
    with pytest.raises(errors.InvalidArgument):
        report.read(tmp_path)
