"""The state machine: every event in every state."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import DEADLINES, ENVIRONMENT, SERVED, TASKS, WATCHED, Story, failure, heard

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.phases import STAGES, Phase
from gridflow._wire import reports
from gridflow._wire.headers import Registration


def reach(phase):
    """Return a story that stands in a phase."""
    story = Story(restarts=2, tasks=WATCHED if phase is Phase.EVALUATING else TASKS)
    if phase is Phase.GATHERING:
        story.register(0)
    elif phase is Phase.STARTING:
        story.register(0)
        story.register(1)
    else:
        story.train()
    if phase is Phase.EVALUATING:
        story.hears(0, reports.Succeeded(0, {}))
    if phase in {Phase.COLLECTING, Phase.CLEARING}:
        story.hears(0, reports.Failed(failure(0)))
    if phase is Phase.CLEARING:
        story.wait(2)
    if phase is Phase.RELAUNCHING:
        story(ev.AgentLost, 1, 1, "gone")
        story.wait(2, silent=[1])
        story.hears(0, reports.Cleared(0))
    if phase in {Phase.CLOSING, Phase.CLOSED}:
        story(ev.Interrupted)
    if phase is Phase.CLOSED:
        story(ev.LaunchEnded, 1)
    assert story.phase is phase
    return story


def registered(at, agent, address):
    return ev.Registered(at, Registration(1, agent, 1, "h", address, ENVIRONMENT))


EVENTS = {
    "tick": lambda at: ev.Tick(at),
    "late tick": lambda at: ev.Tick(at + 10_000),
    "registered": lambda at: registered(at, "agent-1-1", "h1:1"),
    "registered anew": lambda at: registered(at, "another", "h1:2"),
    "alive": lambda at: heard(at, 1, agent="agent-1-1"),
    "stranger alive": lambda at: heard(at, 1, agent="stranger"),
    "lost": lambda at: ev.AgentLost(at, 1, 1, "gone"),
    "frozen": lambda at: heard(at, 1, reports.ExecutorFrozen("frozen"), launch=1),
    "frozen in another launch": lambda at: heard(at, 1, reports.ExecutorFrozen("frozen"), launch=7),
    "stood still": lambda at: ev.DriverStoodStill(at, 100.0),
    "lost in another launch": lambda at: ev.AgentLost(at, 7, 1, "gone"),
    "ready": lambda at: heard(at, 1, reports.Ready(generation=0)),
    "ready in another generation": lambda at: heard(at, 1, reports.Ready(generation=7)),
    "stepped": lambda at: heard(at, 1, reports.StepsDue(due=True, together=False, generation=0)),
    "failed": lambda at: heard(at, 1, reports.Failed(failure(1))),
    "echoed": lambda at: heard(at, 1, reports.Failed(failure(1, consequence=True))),
    "failed for good": lambda at: heard(at, 1, reports.Failed(failure(1, kind="data"))),
    "failed in another generation": lambda at: heard(
        at, 1, reports.Failed(failure(1, generation=7))
    ),
    "succeeded": lambda at: heard(at, 1, reports.Succeeded(0, {})),
    "joined": lambda at: heard(at, 1, reports.Joined(generation=0)),
    "cleared": lambda at: heard(at, 1, reports.Cleared(0)),
    "stack": lambda at: heard(at, 1, reports.Stack("stack", waiting=True, generation=0)),
    "ended": lambda at: ev.LaunchEnded(at, 1),
    "ended with an error": lambda at: ev.LaunchEnded(at, 1, errors.TaskLost("gone")),
    "rows failed": lambda at: ev.LaunchEnded(at, 1, errors.DataError("the rows")),
    "gone": lambda at: heard(at, 1, reports.Gone(), agent="agent-1-1"),
    "stranger gone": lambda at: heard(at, 1, reports.Gone(), agent="stranger"),
    "no rows": lambda at: ev.RowsUnfit(at, "dataset 'train' has no rows"),
    "driver failed": lambda at: ev.DriverFailed(at, errors.GridflowError("the driver")),
    "given up": lambda at: ev.LaunchEnded(at, 1, errors.TaskLost("gone"), outlived=True),
    "leaving": lambda at: ev.AgentLeaving(at, 1, 1, "decommissioned"),
    "leaving in another launch": lambda at: ev.AgentLeaving(at, 7, 1, "decommissioned"),
    "slots came": lambda at: ev.SlotsCame(at, 1, 2),
    "saved": lambda at: heard(at, 0, reports.Saved(generation=0)),
    "another launch ended": lambda at: ev.LaunchEnded(at, 7),
    "interrupted": lambda at: ev.Interrupted(at),
}
#: Where an event may lead, from where. What isn't listed stays where it is.
MOVES = {
    (Phase.GATHERING, "registered"): Phase.STARTING,
    (Phase.GATHERING, "registered anew"): Phase.STARTING,
    (Phase.GATHERING, "ended"): Phase.GATHERING,  # of the next launch
    (Phase.GATHERING, "ended with an error"): Phase.GATHERING,
    (Phase.GATHERING, "late tick"): Phase.CLOSING,
    (Phase.STARTING, "late tick"): Phase.CLOSING,
    (Phase.GATHERING, "leaving"): Phase.RELAUNCHING,
    (Phase.STARTING, "leaving"): Phase.RELAUNCHING,
    (Phase.TRAINING, "late tick"): Phase.RELAUNCHING,  # nobody was heard of
    (Phase.COLLECTING, "late tick"): Phase.CLEARING,
    (Phase.CLEARING, "late tick"): Phase.RELAUNCHING,
    (Phase.RELAUNCHING, "late tick"): Phase.CLOSING,
    (Phase.RELAUNCHING, "ended"): Phase.GATHERING,
    (Phase.RELAUNCHING, "ended with an error"): Phase.GATHERING,
    (Phase.COLLECTING, "failed"): Phase.CLEARING,
    (Phase.COLLECTING, "echoed"): Phase.CLEARING,
    (Phase.COLLECTING, "failed for good"): Phase.CLEARING,
    (Phase.COLLECTING, "lost"): Phase.CLEARING,
    (Phase.COLLECTING, "frozen"): Phase.CLEARING,
    (Phase.COLLECTING, "registered anew"): Phase.CLEARING,
    (Phase.COLLECTING, "ended"): Phase.GATHERING,
    (Phase.COLLECTING, "ended with an error"): Phase.GATHERING,
    (Phase.COLLECTING, "succeeded"): Phase.CLEARING,
    (Phase.COLLECTING, "joined"): Phase.CLEARING,
    (Phase.CLEARING, "ended"): Phase.GATHERING,
    (Phase.CLEARING, "ended with an error"): Phase.GATHERING,
    (Phase.EVALUATING, "succeeded"): Phase.CLOSING,
    (Phase.EVALUATING, "joined"): Phase.CLOSING,
    (Phase.EVALUATING, "registered anew"): Phase.CLOSING,
    (Phase.EVALUATING, "late tick"): Phase.CLOSING,
    (Phase.EVALUATING, "ended"): Phase.CLOSED,
    (Phase.EVALUATING, "ended with an error"): Phase.CLOSED,
    (Phase.CLOSING, "ended"): Phase.CLOSED,
    (Phase.CLOSING, "ended with an error"): Phase.CLOSED,
    (Phase.COLLECTING, "given up"): Phase.GATHERING,
    (Phase.CLEARING, "given up"): Phase.GATHERING,
    (Phase.RELAUNCHING, "given up"): Phase.GATHERING,
    (Phase.GATHERING, "given up"): Phase.GATHERING,
    # Its agents are waited for, as the job ends.
    (Phase.EVALUATING, "given up"): Phase.CLOSING,
    # Rows that can't be computed are no reason to try again, but end what is tried again anyway.
    (Phase.GATHERING, "rows failed"): Phase.CLOSED,
    (Phase.STARTING, "rows failed"): Phase.CLOSED,
    (Phase.TRAINING, "rows failed"): Phase.CLOSED,
    (Phase.EVALUATING, "rows failed"): Phase.CLOSED,
    (Phase.CLOSING, "rows failed"): Phase.CLOSED,
    (Phase.COLLECTING, "rows failed"): Phase.GATHERING,
    (Phase.CLEARING, "rows failed"): Phase.GATHERING,
    (Phase.RELAUNCHING, "rows failed"): Phase.GATHERING,
}
for _phase in (Phase.GATHERING, Phase.STARTING, Phase.TRAINING):
    for _name in ("failed", "echoed", "failed for good", "lost", "frozen"):
        MOVES[_phase, _name] = Phase.COLLECTING
for _name in ("failed", "echoed", "failed for good", "lost", "frozen"):
    MOVES[Phase.EVALUATING, _name] = Phase.CLOSING
for _phase in (Phase.STARTING, Phase.TRAINING):
    MOVES[_phase, "registered anew"] = Phase.COLLECTING
    for _name in ("ended", "ended with an error", "given up"):
        MOVES[_phase, _name] = Phase.GATHERING  # of the next launch
for _phase in set(Phase) - {Phase.CLOSING, Phase.CLOSED}:
    MOVES[_phase, "interrupted"] = Phase.CLOSING
for _phase in set(Phase) - {Phase.RELAUNCHING, Phase.CLOSING, Phase.CLOSED}:
    MOVES[_phase, "driver failed"] = Phase.CLOSING
for _phase in (Phase.GATHERING, Phase.STARTING, Phase.TRAINING, Phase.EVALUATING):
    MOVES[_phase, "no rows"] = Phase.CLOSING


@pytest.mark.parametrize(
    ("phase", "name"),
    [pytest.param(p, n, id=f"{n} while {p.value}") for p, n in itertools.product(Phase, EVENTS)],
)
def test_every_event_in_every_state_leads_where_it_should(phase, name):
    story = reach(phase)
    story.machine.handle(EVENTS[name](story.now))
    assert story.phase is MOVES.get((phase, name), phase)


TRANSITIONS = {(phase, after) for phase, stage in STAGES.items() for after in stage.leads_to}


def test_each_transition_of_the_table_happens_and_no_other(monkeypatch):
    seen, enter = set(), JobMachine._enter

    def noted(machine, phase, at):
        seen.add((machine.phase, phase))
        enter(machine, phase, at)

    monkeypatch.setattr(JobMachine, "_enter", noted)
    for phase, name in itertools.product(Phase, EVENTS):
        reach(phase).machine.handle(EVENTS[name](0.0))
    again = reach(Phase.CLEARING)
    for rank in again.ranks:
        again.hears(rank, reports.Cleared(0))
    moves = reach(Phase.TRAINING)
    moves(ev.AgentLeaving, 1, 1, "decommissioned")
    moves.hears(0, reports.Saved(generation=0))
    assert seen == TRANSITIONS


@pytest.mark.parametrize(
    ("phase", "after"),
    [
        pytest.param(*pair, id=f"{pair[0].value}-{pair[1].value}")
        for pair in itertools.product(Phase, Phase)
        if pair not in TRANSITIONS
    ],
)
def test_a_transition_that_is_not_in_the_table_is_an_error(phase, after):
    story = reach(phase)
    with pytest.raises(
        AssertionError, match=f"^no transition from {phase.value} to {after.value}$"
    ):
        story.machine._enter(after, story.now)
    assert story.phase is phase


def test_every_phase_but_the_training_ends_by_its_own_deadline():
    assert set(STAGES) == set(Phase)
    endless = {phase for phase, stage in STAGES.items() if math.isinf(stage.lasts(DEADLINES, 100))}
    assert endless == {Phase.TRAINING, Phase.CLOSED}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.floats(0, 30)), max_size=40),
    st.sampled_from([(TASKS, "none"), (WATCHED, "none"), (SERVED, "parameter_server")]),
)
def test_whatever_happens_the_job_ends_within_its_deadlines(history, cast):
    tasks, strategy = cast
    story = Story(restarts=2, tasks=tasks, strategy=strategy)
    for name, seconds in history:
        event = EVENTS[name](story.now + seconds)
        story.now = event.at
        story.commands += story.machine.handle(event)
    launches = {c.launch for c in story.commands if isinstance(c, ev.BeginLaunch)}
    assert launches == set(range(1, len(launches) + 1))
    for _ in range(2000):  # the rest is silence: no agent answers any more
        if story.phase is Phase.CLOSED:
            break
        story.now += 1
        new = story.machine.handle(ev.Tick(story.now))
        story.commands += new
        for command in new:
            if isinstance(command, ev.CancelLaunch):
                ended = ev.LaunchEnded(story.now, command.launch)
                story.commands += story.machine.handle(ended)
    assert story.phase is Phase.CLOSED
    assert sum(isinstance(command, ev.Finish) for command in story.commands) == 1
