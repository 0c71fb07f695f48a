"""Jobs whose launches have other numbers of workers: as many as come, and more once they can."""

from __future__ import annotations

import pytest
from stories import CLOSE, Story, failure

from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.phases import Phase
from gridflow._spec.cluster import Task
from gridflow._wire import commands, reports

MOST = 4
TASKS = tuple(Task("worker", rank) for rank in range(MOST))


class Sized(Story):
    """A story of a job of at least two workers, and four at most."""

    def __init__(self, size=MOST, restarts=0, least=2):
        super().__init__(
            restarts,
            TASKS,
            "multi_worker_mirrored",
            replacements=5,
            agents=True,
            least=least,
        )
        machine = self.machine
        self.machine = JobMachine(
            machine.parts,
            machine.deadlines,
            machine.policy,
            start_timeout=machine.start_timeout,
            max_replacements=5,
            replaces_agents=True,
            least=least,
            size=size,
        )
        self.commands = list(self.machine.begin(self.now))
        self.ranks = range(size)

    def have(self, slots):
        return self(ev.SlotsCame, self.machine.launch, slots)

    def relaunched(self):
        """Let the launch end; return the number of tasks of the next one."""
        assert self(ev.LaunchEnded, self.machine.launch) == [ev.BeginLaunch(self.machine.launch)]
        self.ranks = range(len(self.machine.tasks))
        return len(self.machine.tasks)

    def says(self, found):
        return [each.text for each in found if isinstance(each, ev.Say)]

    def saved(self):
        return self.hears(0, reports.Saved(generation=self.machine.generation))

    def steps(self, *ranks):
        told = reports.StepsDue(True, True, generation=self.machine.generation)
        return [each for rank in ranks or self.ranks for each in self.hears(rank, told)]


ASKED = ev.Send(commands.AskToSave(0, stays=True, at_end=True), (0,))


def test_a_job_begins_with_those_that_have_come_in_time_if_they_are_enough():
    story = Sized()
    for rank in (0, 2, 3):
        story.register(rank)
    told = story.wait(101)
    assert story.says(told) == [
        "3 of 4 workers have come within 100 seconds (start_timeout): the job goes on with these"
    ]
    assert story.phase is Phase.RELAUNCHING
    assert story.relaunched() == 3
    story.train()
    assert story.machine.sizes == ((0.0, 3),)
    for rank in range(3):
        story.hears(rank, reports.Succeeded(1, {}))
    assert story.finished() == ev.Finish(None)
    assert [each.failure for each in story.machine.attempts] == [None, None]


def test_too_few_are_not_enough():
    story = Sized()
    story.register(0)
    story.wait(101)
    error = story.finished().error
    assert [each.task for each in error.failures] == ["worker:1", "worker:2", "worker:3"]


def test_once_there_is_room_the_group_stops_at_the_end_of_an_epoch_and_more_begin():
    story = Sized(size=2).train()
    assert story.machine.sizes == ((0.0, 2),)
    assert story.have(2) == []
    said, asked = story.have(3)
    assert said.text == "there is room for 3 workers: the job goes on with them after this epoch"
    assert asked == ASKED
    assert story.have(5) == story.steps() == []
    told = story.saved()
    assert story.says(told) == ["the job goes on with 4 workers"]
    assert told[1:] == [CLOSE, ev.CancelLaunch(1)]
    assert story.relaunched() == 4
    story.train()
    assert story.have(9) == []
    assert story.machine.generation == 1
    assert [(each.failure, each.sizes) for each in story.machine.attempts] == [(None, ((0.0, 2),))]


def test_if_slots_are_gone_again_as_many_begin_as_there_were():
    story = Sized(size=2).train()
    story.have(3)
    story.have(1)
    assert story.says(story.saved()) == ["the job goes on with 2 workers"]
    assert story.relaunched() == 2


def test_a_job_of_a_fixed_number_of_workers_doesnt_grow():
    story = Sized(least=None).train()
    assert story.have(9) == story.steps() == story.saved() == []


def test_who_is_lost_meanwhile_is_replaced_first_and_asked_again():
    story = Sized(size=3).train()
    story.steps()
    story.have(4)
    story.hears(0, reports.Failed(failure(0, kind="signal", tasks=TASKS)))
    story.hears(0, reports.Ready(generation=0))
    assert story.steps(1, 2) == []
    (back, _) = story(ev.WantsToJoin, 1, 0, 0)
    assert back.text == "Back: worker:0; 3 of 3 workers"
    *_, asked = story.steps(0)
    assert asked == ASKED


def test_a_group_that_is_to_move_does_so_first():
    story = Sized(size=2).train()
    story.have(3)
    _, asked = story(ev.AgentLeaving, 1, 1, "its executor is being decommissioned")
    assert asked == ev.Send(commands.AskToSave(0, stays=False), (0,))
    assert story.saved() == []
    assert story.phase is Phase.TRAINING


def test_after_a_failure_the_next_launch_has_as_many_as_come():
    story = Sized(restarts=1).train()
    for rank in range(MOST):
        story(ev.AgentLost, 1, rank, "its host is gone")
    story.wait(20, silent=range(MOST))
    assert story.phase is Phase.RELAUNCHING
    assert story.relaunched() == MOST
    story.register(0)
    story.register(1)
    story.wait(101)
    assert story.relaunched() == 2
    story.train()
    assert story.machine.generation == 2


@pytest.mark.parametrize("phase", [Phase.GATHERING, Phase.TRAINING])
def test_a_launch_that_doesnt_end_ends_the_job(phase):
    story = Sized(size=2)
    if phase is Phase.TRAINING:
        story.train()
        story.have(4)
        story.saved()
    else:
        story = Sized()
        story.register(0)
        story.register(1)
        story.wait(101)
    assert story.phase is Phase.RELAUNCHING
    story.wait(30)
    assert "its agent didn't end within 20 seconds" in str(story.finished().error)
