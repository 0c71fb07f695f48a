"""Executors that are taken back with notice: a checkpoint is made, and the group moves away."""

from __future__ import annotations

import pytest
from stories import CLOSE, Story, failure

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import JobMachine
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.policies import Restarts
from gridflow._spec.cluster import Task
from gridflow._wire import commands, reports

WHY = "its executor 1 is being decommissioned"
THREE = tuple(Task("worker", rank) for rank in range(3))


class Moving(Story):
    """A story whose group may move away from executors that are taken back."""

    def __init__(self, preemptions=1, **options):
        super().__init__(**options)
        machine = self.machine
        policy = Restarts(max_preemptions=preemptions).policy_with(0)
        self.machine = JobMachine(
            machine.parts, machine.deadlines, policy, start_timeout=machine.start_timeout
        )
        self.commands = list(self.machine.begin(self.now))

    def leaves(self, rank=1, launch=1):
        return self(ev.AgentLeaving, launch, rank, WHY)


def test_a_group_saves_at_one_step_moves_and_that_counts_as_no_restart():
    story = Moving().train()
    said, asked = story.leaves()
    assert said.text == f"worker:1: {WHY}. The group makes a checkpoint and moves"
    assert asked == ev.Send(commands.AskToSave(0, stays=True), (0,))
    assert story.leaves() == []
    assert story.leaves(0) == []
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
    said, asked = story.leaves()
    assert asked == ev.Send(commands.AskToSave(0, stays=False), (0,))
    assert "continues while it can (max_preemptions allows no move)" in said.text
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


def test_a_group_that_makes_no_checkpoint_trains_to_its_end():
    story = Moving().train()
    story.leaves()
    assert story.wait(60) == []
    for rank in (0, 1):
        story.hears(rank, reports.Succeeded(0, {}))
    assert story.finished() == ev.Finish(None)


def test_a_new_generation_is_asked_anew():
    story = Moving(preemptions=2).train()
    story.leaves()
    story.hears(0, reports.Saved(generation=0))
    story(ev.LaunchEnded, 1)
    story.train()
    assert story.hears(0, reports.Saved(generation=1)) == []  # of a checkpoint nobody asked for
    said, asked = story.leaves(launch=2)
    assert "moves" in said.text
    assert asked == ev.Send(commands.AskToSave(1, stays=True), (0,))


def test_a_failure_of_the_program_on_a_leaving_executor_is_still_its_own():
    story = Moving().train()
    story.leaves()
    story.hears(1, reports.Failed(failure(1, kind="exception")))
    story.wait(2)
    assert type(story.finished().error) is errors.TrainingFailed


def elastic(least):
    story = Story(
        tasks=THREE,
        strategy="multi_worker_mirrored",
        replacements=5,
        agents=True,
        least=least,
    )
    return story.train()


def leaves(story, rank):
    return story(ev.AgentLeaving, 1, rank, WHY)


@pytest.mark.parametrize("how", ["agent", "process"])
def test_where_workers_come_and_go_the_others_go_on_without_one_that_is_taken_back(how):
    story = elastic(2)
    (said,) = leaves(story, 1)
    assert said.text == f"worker:1: {WHY}. The others go on when it is gone"
    if how == "agent":
        said, sent, another = story(ev.AgentLost, 1, 1, "its executor died")
        assert another == ev.ReplaceAgent(1, 1)
    else:
        killed = failure(1, kind="signal", tasks=THREE)
        said, sent = story.hears(1, reports.Failed(killed))
    assert "2 of 3 workers go on until it is back" in said.text
    assert sent.command.members == (0, 2)
    (lost,) = story.machine.replaced
    assert (lost.kind, lost.task) == ("preempted", "worker:1")
    assert lost.summary.startswith(WHY)
    assert story.phase is Phase.TRAINING


def test_if_too_few_would_be_left_all_make_a_checkpoint():
    story = elastic(2)
    leaves(story, 1)
    said, asked = leaves(story, 2)
    assert "The group makes a checkpoint" in said.text
    assert asked == ev.Send(commands.AskToSave(0, stays=False), (0,))
    story(ev.AgentLost, 1, 1, "its executor died")
    assert story.phase is Phase.COLLECTING


def test_one_that_dies_after_that_checkpoint_is_replaced_all_the_same():
    story = elastic(2)
    leaves(story, 1)
    leaves(story, 2)
    said, _ = story.hears(0, reports.Failed(failure(0, kind="signal", tasks=THREE)))
    assert "2 of 3 workers go on" in said.text
    assert story.phase is Phase.TRAINING


def test_start_timeout_begins_anew_with_each_executor_that_comes():
    story = Story()
    story.wait(90)
    story(ev.SlotsCame, 1, 1)
    story.register(0)
    story.wait(90)
    assert story.phase is Phase.GATHERING
    story(ev.SlotsCame, 7, 2)
    story.wait(11)
    assert story.phase is Phase.CLOSING
