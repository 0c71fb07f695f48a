"""Some seeds of the simulated world, and that it notices what is wrong."""

from __future__ import annotations

import pytest

from gridflow._coordinator import machine
from gridflow._coordinator.meetings import Meetings
from simulation.__main__ import failing, problem_of, shrunk
from simulation.world import Fault, Plan, plan_of, simulate

KILLED = Plan(1, 3, 60, "plain processes", 0, 0, 2, (Fault(15.0, "kill", 1),))


def test_jobs_keep_their_promises_whatever_happens():
    assert failing(range(150)) == []


@pytest.mark.slow
def test_many_more_jobs_do_too():
    assert failing(range(1_000, 4_000)) == []


@pytest.mark.slow
def test_a_job_of_4096_agents_ends_well():
    assert simulate(Plan(1, 4096, 5, "plain processes", 1, 0, 0, ())).driver.finish.error is None


def test_a_killed_process_is_replaced_and_the_steps_go_on():
    world = simulate(KILLED)
    assert world.driver.finish.error is None
    assert [each.task for each in world.driver.machine.replaced] == ["worker:1"]
    assert world.newest == (1, 0, 1)


def forgets(meetings, told):
    """Hear that a rank was replaced, and tell nobody who waits for it."""
    meetings._view, meetings._in_view = told.view, told.members or meetings._members
    return []


def never_replaces(self, rank, failure):
    return False


def blames_the_last(failures):
    return list(reversed(list(failures)))


def misses_deadlines(self, at):
    return []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (Meetings, "replaced", forgets),
        (machine.JobMachine, "_can_replace", never_replaces),
        (machine, "choose_cause", blames_the_last),
        (machine.JobMachine, "_check_deadlines", misses_deadlines),
    ],
)
def test_what_is_broken_is_found_and_shrunk(monkeypatch, owner, name, mutant):
    monkeypatch.setattr(owner, name, mutant)
    found = next((plan for plan in map(plan_of, range(2_000)) if problem_of(plan)), None)
    assert found is not None
    assert len(shrunk(found).faults) <= len(found.faults)
    assert problem_of(shrunk(found))
