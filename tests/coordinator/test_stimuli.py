"""What a job's machine was told is written down, and told again by a replay."""

from __future__ import annotations

import json

import pytest
from stories import ENVIRONMENT

from gridflow import cli, errors
from gridflow._coordinator import events as ev
from gridflow._coordinator import stimuli
from gridflow._coordinator.journal import NAME, Journal
from gridflow._coordinator.policies import MaxRestarts
from gridflow._spec.cluster import Task
from gridflow._spec.exits import Exit
from gridflow._spec.job import parts_of
from gridflow._spec.option_groups import Deadlines
from gridflow._wire import reports
from gridflow._wire.failures import TaskFailure
from gridflow._wire.headers import Registration, Sender

AGENTS = [Sender(rank, f"agent-{rank}", 1) for rank in (0, 1)]


def record(folder, events, restarts=1, then=lambda journal: None):
    """Record a job of two workers, and more into its journal; return its instructions."""
    parts = parts_of([Task("worker", 0), Task("worker", 1)], "none")
    about = {"needs": (), "environment": ENVIRONMENT, "start_timeout": 100.0}
    journal = Journal(folder)
    machine = stimuli.RecordedMachine(
        journal, parts, "none", Deadlines(heartbeat=60, step=50), MaxRestarts(restarts), **about
    )
    todo = machine.begin(0.0)
    for event in events:
        todo += machine.handle(event)
    then(journal)
    journal.close()
    return todo


def started():
    """Yield what happens until both ranks train."""
    for rank, sender in enumerate(AGENTS):
        about = {"host": f"host-{rank}", "address": f"h:{rank}", "environment": ENVIRONMENT}
        yield ev.Registered(1.0, Registration(rank, sender.agent, 1, **about))
    for sender in AGENTS:
        yield ev.Heard(2.0, sender, reports.Ready(generation=0))


def failed(at, rank, summary):
    failure = TaskFailure(
        f"worker:{rank}", f"host-{rank}", "exception", summary, log_tail=("a", "b")
    )
    return ev.Heard(at, AGENTS[rank], reports.Failed(failure))


def test_a_replay_tells_what_happened_and_what_was_decided(tmp_path, capsys):
    waits = [ev.Tick(3 + number / 10) for number in range(200)]
    told = record(
        tmp_path,
        [
            *started(),
            ev.Heard(3.0, AGENTS[0]),
            ev.Heard(3.0, AGENTS[0], reports.StepsDue(due=True, together=False, generation=0)),
            *waits,
            ev.Heard(24.0, AGENTS[0]),
            ev.Heard(24.0, AGENTS[1]),
            failed(25.0, 1, "ValueError: no"),
            ev.Tick(40.0),
            *[ev.Heard(41.0, sender, reports.Cleared(generation=0)) for sender in AGENTS],
            ev.Interrupted(42.0),
            ev.LaunchEnded(43.0, 1, errors.TaskLost("gone")),
        ],
    )
    assert told[-1] == ev.Finish(None, interrupted=True)
    assert cli.main(["replay", str(tmp_path)]) == 0
    story = capsys.readouterr().out
    assert "would" not in story
    words = [
        "2 tasks (worker:0, worker:1), strategy none",
        "0.0 s  the job begins",
        "begin launch 1",
        "1.0 s  worker:0 registers, on host-0",
        "1.0 s  worker:1 registers, on host-1 → starting",
        "start generation 0",
        "2.0 s  worker:1 says ready → training",
        "25.0 s  worker:1 fails, exception: ValueError: no → ",
        "send clear to all",
        "the job is cancelled → closing",
        "finish: interrupted",
    ]
    found = [story.index(each) for each in words]
    assert found == sorted(found)
    # 200 ticks and three signs of life are two lines.
    lines = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert sum("usual" in line for line in lines) <= 3
    assert len(lines) < 20


def test_a_replay_says_where_this_version_decides_otherwise(tmp_path):
    record(tmp_path, [*started(), failed(3.0, 0, "no"), failed(3.0, 1, "no")])
    path = tmp_path / NAME
    path.write_text(path.read_text().replace("send clear to all", "send flowers to all"))
    story = "\n".join(stimuli.replay(tmp_path))
    assert "send flowers to all" in story
    assert "(this version of gridflow would: send clear to all" in story


@pytest.mark.parametrize(
    "event",
    [
        *started(),
        failed(1.5, 1, "no"),
        ev.Tick(1.0),
        ev.DriverStoodStill(1.0, 7.5),
        ev.Heard(1.0, AGENTS[0], reports.ExecutorFrozen("for 10 seconds")),
        ev.Heard(1.0, AGENTS[0], reports.Stack("here", waiting=False, threads={"a": "b"})),
        ev.Heard(1.0, AGENTS[1], reports.Succeeded(1, {"kind": "none", "files": []})),
        ev.AgentLost(1.0, 1, 0, "gone"),
        ev.AgentLeaving(1.0, 1, 0, "will be gone"),
        ev.SlotsCame(1.0, 2, 3),
        ev.TaskWaits(1.0, 0, 0, "barrier"),
        ev.WantsToJoin(1.0, 1, 1, 0),
        ev.RowsUnfit(1.0, "of two shapes"),
        ev.LaunchEnded(1.0, 1, outlived=True),
        ev.Interrupted(1.0),
    ],
)
def test_every_event_comes_back_as_it_was(event):
    assert stimuli.decode(json.loads(json.dumps(stimuli.encode(event)))) == event


def test_errors_come_back_by_type_and_words():
    for kind in (ev.DriverFailed, lambda at, error: ev.LaunchEnded(at, 1, error)):
        event = kind(1.0, errors.NotEnoughSlots("too few"))
        event.error.spark_errors = ("FetchFailed", "TOO_FEW")
        found = stimuli.decode(json.loads(json.dumps(stimuli.encode(event)))).error
        assert (type(found), str(found)) == (errors.NotEnoughSlots, "too few")
        assert found.spark_errors == ("FetchFailed", "TOO_FEW")


@pytest.mark.parametrize("content", [None, "", "[]", '{"tasks": ["worker:x"]}', "no JSON"])
def test_a_folder_without_a_log_is_refused(tmp_path, content, capsys):
    if content is not None:
        (tmp_path / NAME).write_text(content)
    assert cli.main(["replay", str(tmp_path)]) == Exit.USAGE
    assert "journal" in capsys.readouterr().err


def test_a_full_disk_costs_the_log_and_not_the_job(tmp_path):
    (tmp_path / NAME).symlink_to("/dev/full")
    todo = record(tmp_path, [*started(), ev.Interrupted(3.0), ev.LaunchEnded(4.0, 1)])
    assert todo[-1] == ev.Finish(None, interrupted=True)
