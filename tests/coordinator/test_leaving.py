"""Executors that are taken back with notice: a checkpoint is made, and the group moves away."""

from __future__ import annotations

import pytest
from stories import CLOSE, Story, failure

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.checkpoint_barrier import CheckpointBarrier
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.policies import Restarts
from gridflow._wire import commands, reports

WHY = "its executor 1 is being decommissioned"


class Moving(Story):
    """A story whose ranks train together."""

    def __init__(self, preemptions=1, **options):
        super().__init__(**options)
        machine = self.machine
        policy = Restarts(max_preemptions=preemptions).policy_with(0)
        self.machine = JobMachine(
            machine.parts,
            machine.deadlines,
            policy,
            start_timeout=machine.start_timeout,
            saves_together=True,
        )
        self.commands = list(self.machine.begin(self.now))

    def leaves(self, rank=1, launch=1):
        return self(ev.AgentLeaving, launch, rank, WHY)

    def answer(self, *steps):
        new = []
        for rank, step in enumerate(steps):
            new += self.hears(rank, reports.CanSave(step, generation=self.machine.generation))
        return new


def test_a_group_saves_at_one_step_moves_and_that_counts_as_no_restart():
    story = Moving().train()
    said, asked = story.leaves()
    assert said.text == f"worker:1: {WHY}. The group makes a checkpoint and moves"
    assert asked == ev.Send(commands.AskToSave(0), (0, 1))
    assert story.leaves() == []
    assert story.leaves(0) == []
    assert story.answer(7, 8) == [ev.Send(commands.SaveAfter(0, 8, stays=True), (0, 1))]
    assert story.wait(30) == []
    assert story.hears(0, reports.Saved(generation=0)) == [CLOSE, ev.CancelLaunch(1)]
    assert story.phase is Phase.RELAUNCHING
    assert story(ev.LaunchEnded, 1) == [ev.BeginLaunch(2)]
    story.train()
    for rank in (0, 1):
        story.hears(rank, reports.Succeeded(1, {}))
    assert story.finished() == ev.Finish(None)
    first, second = story.machine.attempts
    assert (first.failure.kind, first.failure.task, first.failure.summary) == (
        "preempted",
        "worker:0",
        WHY,
    )
    assert second.failure is None


def test_without_a_budget_a_checkpoint_is_made_and_the_group_goes_on_until_it_loses_a_rank():
    story = Moving(preemptions=0).train()
    said, _ = story.leaves()
    assert "continues while it can (max_preemptions allows no move)" in said.text
    assert story.answer(3, 3) == [ev.Send(commands.SaveAfter(0, 3, stays=False), (0, 1))]
    assert story.hears(0, reports.Saved(generation=0)) == []
    assert story.phase is Phase.TRAINING
    story(ev.AgentLost, 1, 1, "its executor died")
    story.wait(2, silent=[1])
    error = story.finished().error
    assert type(error) is errors.TaskLost
    assert (error.first.task, error.first.kind) == ("worker:1", "preempted")
    assert f"{WHY}. Now its executor died" in str(error)
    assert "max_preemptions" in str(error)


def test_an_executor_that_is_gone_before_the_checkpoint_counts_as_preempted_all_the_same():
    story = Moving().train()
    story.leaves()
    story.answer(4)
    story.hears(0, reports.Failed(failure(0, consequence=True)))
    story.hears(1, reports.Failed(failure(1, kind="signal")))
    story.wait(2)
    assert story.phase is Phase.CLEARING
    for rank in (0, 1):
        story.hears(rank, reports.Cleared(0))
    assert story.phase is Phase.RELAUNCHING  # not in the executor that goes
    (attempt,) = story.machine.attempts
    assert (attempt.failure.kind, attempt.failure.task) == ("preempted", "worker:1")


@pytest.mark.parametrize("stands", ["gathering", "starting"])
def test_what_has_not_begun_to_train_moves_at_once(stands):
    story = Moving()
    story.register(1)
    if stands == "starting":
        story.register(0)
    assert story.leaves() == [CLOSE, ev.CancelLaunch(1)]
    assert story(ev.LaunchEnded, 1) == [ev.BeginLaunch(2)]
    assert story.leaves(launch=1) == []
    story.train()
    assert story.machine.generation == 1


def test_where_no_checkpoint_can_be_made_the_group_is_left_alone_and_asked_again():
    story = Moving().train()
    story.leaves()
    assert story.answer(None, 5) == [ev.Send(commands.SaveAfter(0, None, stays=False), (0, 1))]
    assert story.answer(5) == []  # nobody has asked
    assert story.wait(4) == []
    assert story.wait(2) == [ev.Send(commands.AskToSave(0), (0, 1))]
    # One that doesn't answer must not keep those at a stand that have.
    assert story.answer(6) == []
    assert story.wait(11) == [ev.Send(commands.SaveAfter(0, None, stays=False), (0, 1))]
    assert story.wait(6) == [ev.Send(commands.AskToSave(0), (0, 1))]
    for rank in (0, 1):
        story.hears(rank, reports.Succeeded(0, {}))
    assert story.finished() == ev.Finish(None)


def test_a_failure_of_the_program_on_a_leaving_executor_is_still_its_own():
    story = Moving().train()
    story.leaves()
    story.hears(1, reports.Failed(failure(1, kind="exception")))
    story.wait(2)
    assert type(story.finished().error) is errors.TrainingFailed


def test_one_that_saves_alone_asks_nobody_else():
    saving = CheckpointBarrier((0,), 2, 10, stays=True)
    assert saving.tick(1) == [ev.Send(commands.AskToSave(2), (0,))]
    assert saving.answered(1, 1, 9) == []
    assert saving.answered(1, 0, 4) == [ev.Send(commands.SaveAfter(2, 4, stays=True), (0,))]
    assert saving.tick(100) == []


def test_start_timeout_begins_anew_with_each_executor_that_comes():
    story = Story()
    story.wait(90)
    story(ev.SlotsCame, 1)
    story.register(0)
    story.wait(90)
    assert story.phase is Phase.GATHERING
    story(ev.SlotsCame, 7)
    story.wait(11)
    assert story.phase is Phase.CLOSING
