"""A rank whose process has died is replaced while the others of its group keep theirs."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from stories import ENVIRONMENT, Story, failure

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.meetings import Meetings
from gridflow._coordinator.phases import Phase
from gridflow._spec.cluster import Task
from gridflow._wire import commands, reports, values
from gridflow._wire.reports import INTRODUCTION, Meet

TASKS = tuple(Task("worker", rank) for rank in range(3))


def training(replacements=2, **options):
    story = Story(
        tasks=TASKS, strategy="multi_worker_mirrored", replacements=replacements, **options
    )
    return story.train()


def dies(story, rank, **fields):
    how = {"kind": "signal", "signal": "SIGKILL", **fields}
    kind = how.pop("kind")
    died = replace(
        failure(rank, kind=kind, tasks=TASKS, generation=story.machine.generation), **how
    )
    return story.hears(rank, reports.Failed(died))


def comes_back(story, rank):
    story.hears(rank, reports.Ready(generation=story.machine.generation))
    story.hears(rank, reports.StepsDue(True, True, generation=story.machine.generation))


def test_all_ranks_of_the_group_hear_of_each_replacement():
    story = training()
    for view, rank in enumerate((1, 0), 1):
        say, told = dies(story, rank)
        assert f"worker:{rank}" in say.text
        assert f"{view} of max_replacements=2" in say.text
        assert told == ev.Send(commands.Replace(0, rank, view), (0, 1, 2))
        comes_back(story, rank)
    for rank in story.ranks:
        story.hears(rank, reports.Succeeded(0, {}))
    assert story.finished() == ev.Finish(None)
    assert [each.failure for each in story.machine.attempts] == [None]


def starting(**options):
    story = Story(
        tasks=TASKS, strategy="multi_worker_mirrored", replacements=2, agents=True, **options
    )
    for rank in story.ranks:
        story.register(rank)
    assert story.phase is Phase.STARTING
    return story


def test_a_process_that_dies_as_it_starts_is_waited_for_anew():
    story = starting()
    story.hears(1, reports.Ready(generation=0))
    story.wait(90)
    _, told = dies(story, 1)
    assert told == ev.Send(commands.Replace(0, 1, 1), (0, 1, 2))
    for rank in (0, 2):
        story.hears(rank, reports.Ready(generation=0))
    story.wait(90)
    assert story.phase is Phase.STARTING
    story.hears(1, reports.Ready(generation=0))
    assert story.phase is Phase.TRAINING


def test_where_enough_are_left_they_begin_without_one_that_dies_as_it_starts():
    story = starting(least=2)
    _, told = dies(story, 1)
    assert told.command.members == (0, 2)
    story(ev.WantsToJoin, 1, 1, 0)
    for rank in (0, 2):
        story.hears(rank, reports.Ready(generation=0))
    assert story.phase is Phase.TRAINING
    story.hears(0, reports.StepsDue(True, True, generation=0))
    (said, _) = story.hears(2, reports.StepsDue(True, True, generation=0))
    assert said.text == "Back: worker:1; 3 of 3 workers"


def test_an_agent_that_is_lost_before_its_process_has_started_ends_the_group():
    story = starting()
    story(ev.AgentLost, 1, 1, "it was killed")
    assert story.phase is Phase.COLLECTING


@pytest.mark.parametrize("kind", ["exception", "data", "environment", "steps"])
def test_what_a_new_process_would_meet_again_ends_the_group(kind):
    story = training()
    dies(story, 1, kind=kind, signal=None)
    assert story.phase is Phase.COLLECTING


def test_more_deaths_than_allowed_end_the_group():
    story = training(1)
    dies(story, 1)
    comes_back(story, 1)
    dies(story, 2)
    assert story.phase is Phase.COLLECTING
    story.wait(2)
    assert story.finished().error.first.task == "worker:2"


def test_a_program_that_ends_twice_in_the_same_way_ends_the_group():
    story = training(5)
    for code in (3, 4, 3):
        assert story.phase is Phase.TRAINING
        dies(story, 1, kind="exit", signal=None, exit_code=code)
        comes_back(story, 1)
    assert story.phase is Phase.COLLECTING


def test_a_process_may_be_killed_twice():
    story = training()
    for _ in range(2):
        dies(story, 1)
        comes_back(story, 1)
    assert story.phase is Phase.TRAINING


def test_without_a_rank_that_knows_where_the_training_was_the_group_restarts():
    story = training(3, restarts=1)
    for rank in story.ranks:
        dies(story, rank)
    story.wait(2)
    assert story.phase is Phase.CLEARING
    for rank in story.ranks:
        story.hears(rank, reports.Cleared(0))
    assert isinstance(story.commands[-1], ev.StartGeneration)


def test_the_death_is_the_cause_if_the_others_cant_go_on():
    story = training()
    dies(story, 1)
    echo = failure(0, consequence=True, tasks=TASKS)
    story.hears(0, reports.Failed(echo))
    story.wait(2)
    error = story.finished().error
    assert type(error) is errors.TrainingFailed
    assert [each.task for each in error.failures] == ["worker:1", "worker:0"]


def test_once_the_new_process_makes_steps_the_death_is_forgotten():
    story = training()
    dies(story, 1)
    comes_back(story, 1)
    story.hears(2, reports.Failed(failure(2, tasks=TASKS)))
    story.wait(2)
    assert [each.task for each in story.finished().error.failures] == ["worker:2"]


def test_a_new_process_that_doesnt_come_up_ends_the_group():
    story = training()
    dies(story, 1)
    story.wait(101)
    assert story.finished().error.first.task == "worker:1"


def test_the_steps_of_a_group_that_forms_arent_waited_for():
    story = training()
    for rank in story.ranks:
        story.hears(rank, reports.StepsDue(True, True, generation=0))
    dies(story, 1)
    story.wait(60)  # Deadlines.step is 50
    assert story.phase is Phase.TRAINING


@pytest.mark.parametrize("end", ["lost", "returned"])
def test_where_another_rank_is_gone_nobody_is_replaced(end):
    story = training()
    if end == "lost":
        story(ev.AgentLost, story.machine.launch, 2, "its executor is gone")
    else:
        story.hears(2, reports.Succeeded(0, {}))
    dies(story, 1)
    assert story.phase is Phase.COLLECTING


# Agents -------------------------------------------------------------------------------------------


def is_lost(story, rank=1):
    return story(ev.AgentLost, 1, rank, "its executor is gone")


def test_where_the_launch_cant_bring_another_agent_the_group_ends():
    story = training()
    is_lost(story)
    assert story.phase is Phase.COLLECTING


def test_a_lost_agent_has_a_successor_that_takes_its_place():
    story = training(agents=True)
    say, told, replaces = is_lost(story)
    assert "The others wait for an agent in its place" in say.text
    assert told == ev.Send(commands.Replace(0, 1, 1), (0, 2))
    assert replaces == ev.ReplaceAgent(1, 1)
    (starts,) = story.register(1, agent="successor")
    assert starts == ev.StartRank(0, 1, ("h0:1", "h1:1", "h2:1"), 1)
    story.hears(1, reports.Ready(generation=0), agent="successor")
    story.hears(1, reports.StepsDue(True, True, generation=0), agent="successor")
    for rank in story.ranks:
        story.hears(rank, reports.Succeeded(0, {}), agent="successor" if rank == 1 else None)
    assert story.finished() == ev.Finish(None)
    assert [each.failure for each in story.machine.attempts] == [None]
    assert [each.kind for each in story.machine.replaced] == ["lost"]


def test_a_task_that_spark_starts_again_takes_its_place_at_once():
    story = training(agents=True)
    say, told, starts = story.register(1, agent="successor")
    assert "Spark retried the task" in say.text
    assert told == ev.Send(commands.Replace(0, 1, 1), (0, 2))
    assert starts == ev.StartRank(0, 1, ("h0:1", "h1:1", "h2:1"), 1)


def test_two_agents_may_be_lost_with_one_host():
    story = training(5, agents=True)
    is_lost(story, 1)
    is_lost(story, 2)
    assert story.phase is Phase.TRAINING
    assert story.register(2, agent="new-2") == [ev.StartRank(0, 2, ("h0:1", "h1:1", "h2:1"), 2)]
    is_lost(story, 0)
    assert story.phase is not Phase.TRAINING  # nobody is left that knows where it was


def test_what_is_said_of_the_lost_one_meanwhile_counts_for_nothing():
    story = training(agents=True)
    is_lost(story)
    assert dies(story, 1) == []
    assert story.phase is Phase.TRAINING


@pytest.mark.parametrize("end", ["dies", "late", "refused"])
def test_without_a_successor_the_loss_ends_the_group(end):
    story = training(agents=True)
    is_lost(story)
    if end == "dies":
        is_lost(story)
    elif end == "late":
        story.wait(101, silent=[1])
    else:
        story(ev.NotReplaced, 1, 1, "Rows were pushed to it")
        assert story.machine.replaced == []
    story.wait(2, silent=[1])
    error = story.finished().error
    assert type(error) is errors.TaskLost
    assert error.first.summary.startswith("its executor is gone")
    assert ("Rows were pushed to it" in error.first.summary) == (end == "refused")


def is_silent(story, seconds):
    return story.wait(seconds, silent=[1])


def test_an_agent_that_was_only_silent_takes_its_own_place():
    story = training(agents=True)
    say, told = is_silent(story, 12)
    assert "no heartbeat" in say.text
    assert told == ev.Send(commands.Replace(0, 1, 1), (0, 2))
    is_silent(story, 10)
    assert story.hears(1) == [ev.Send(commands.Replace(0, 1, 1), (1,))]
    comes_back(story, 1)
    story.wait(40)
    assert story.phase is Phase.TRAINING


def test_an_agent_that_stays_silent_ends_the_group():
    story = training(agents=True)
    is_silent(story, 29)
    assert story.phase is Phase.TRAINING
    is_silent(story, 5)
    assert story.finished().error.first.summary.startswith("no heartbeat")


def test_once_a_silent_agent_is_gone_another_one_is_started():
    story = training(agents=True)
    is_silent(story, 12)
    assert is_lost(story) == [ev.ReplaceAgent(1, 1)]
    is_silent(story, 90)
    assert story.phase is Phase.TRAINING
    assert story.register(1, agent="successor") == [ev.StartRank(0, 1, ("h0:1", "h1:1", "h2:1"), 1)]


def test_a_successor_with_other_packages_ends_the_job():
    story = training(agents=True)
    is_lost(story)
    story.register(1, {**ENVIRONMENT, "tensorflow": ""}, "successor")
    story.wait(2)
    story(ev.LaunchEnded, 1)
    (finish,) = [each for each in story.commands if isinstance(each, ev.Finish)]
    assert "tensorflow" in str(finish.error)


# Meetings -----------------------------------------------------------------------------------------


def held(number, values, operation="all_gather"):
    meetings = Meetings(0, range(3), [str(task) for task in TASKS], keeps=True)
    for rank, value in enumerate(values):
        meetings.came(rank, Meet(number, operation, value))
    return meetings


def test_a_new_process_hears_what_was_said_before():
    meetings = held(1, "abc")
    assert meetings.replaced(commands.Replace(0, 1, 1)) == []
    (answer,) = meetings.came(1, Meet(1, "all_gather", "b"))
    assert (answer.rank, answer.command.values) == (1, ["a", "b", "c"])
    assert meetings.came(1, Meet(2, "barrier", "")) == []


def test_who_waits_for_a_rank_waits_for_its_new_process():
    meetings = held(1, "ab")
    meetings.replaced(commands.Replace(0, 1, 1))
    assert meetings.came(2, Meet(1, "all_gather", "c")) == []
    answers = meetings.came(1, Meet(1, "all_gather", "B"))
    assert {each.rank for each in answers} == {0, 1, 2}
    assert answers[0].command.values == ["a", "B", "c"]


def test_each_group_has_an_introduction_of_its_own():
    meetings = held(INTRODUCTION, "abc", "strategy")
    meetings.replaced(commands.Replace(0, 1, 1))
    meetings.came(0, Meet(INTRODUCTION, "strategy", "a", 1))
    (late,) = meetings.came(2, Meet(INTRODUCTION, "strategy", "late", 0))
    assert (late.rank, late.command.problem) == (2, "the group has changed meanwhile")
    (told,) = meetings.replaced(commands.Replace(0, 2, 2))
    assert (told.rank, told.command.problem) == (0, "the group has changed meanwhile")
    for rank in (0, 1):
        assert meetings.came(rank, Meet(INTRODUCTION, "strategy", "x", 2)) == []
    answers = meetings.came(2, Meet(INTRODUCTION, "strategy", "x", 2))
    assert {each.rank for each in answers} == {0, 1, 2}


# A group that goes on with fewer ------------------------------------------------------------------


def elastic(least=1, **options):
    return training(5, least=least, **options)


def steps(story, *ranks):
    for rank in ranks:
        story.hears(rank, reports.StepsDue(True, True, generation=story.machine.generation))


def replaces(found):
    """Return what is sent about a group: who is restarted, the view, its members, who hears it."""
    sent = [each for each in found if isinstance(each, ev.Send)]
    return [
        (each.command.rank, each.command.view, each.command.members, each.ranks) for each in sent
    ]


def test_the_others_go_on_at_once_and_let_it_in_at_the_end_of_a_step():
    story = elastic()
    steps(story, 0, 1, 2)
    assert replaces(dies(story, 1)) == [(1, 1, (0, 2), (0, 1, 2))]
    steps(story, 0, 2)
    story.hears(1, reports.Ready(generation=0))
    assert replaces(story(ev.WantsToJoin, 1, 1, 0)) == [(-1, 2, (), (0, 1, 2))]
    steps(story, 0, 1, 2)
    for rank in story.ranks:
        story.hears(rank, reports.Succeeded(0, {}))
    assert story.finished() == ev.Finish(None)
    (attempt,) = story.machine.attempts
    assert [size for _, size in attempt.sizes] == [2, 3]


def test_who_wants_to_join_waits_until_the_others_make_steps():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    assert story(ev.WantsToJoin, 1, 1, 0) == []
    steps(story, 0)
    found = story.hears(2, reports.StepsDue(True, True, generation=0))
    assert replaces(found) == [(-1, 2, (), (0, 1, 2))]


def test_the_group_waits_where_too_few_would_be_left():
    story = elastic(least=2)
    steps(story, 0, 1, 2)
    assert replaces(dies(story, 1)) == [(1, 1, (0, 2), (0, 1, 2))]
    steps(story, 0, 2)
    assert replaces(dies(story, 2)) == [(2, 2, (0, 2), (0, 1, 2))]


def test_one_that_is_away_and_dies_again_disturbs_nobody():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    steps(story, 0, 2)
    assert replaces(dies(story, 1)) == [(1, 1, (0, 2), (1,))]


def test_one_that_dies_as_it_joins_is_left_behind_again():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    steps(story, 0, 2)
    story(ev.WantsToJoin, 1, 1, 0)
    assert replaces(dies(story, 1)) == [(1, 3, (0, 2), (0, 1, 2))]


@pytest.mark.parametrize("joins", [False, True])
def test_a_job_ends_without_those_that_are_away_or_have_yet_to_make_a_step(joins):
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    steps(story, 0, 2)
    if joins:
        story(ev.WantsToJoin, 1, 1, 0)
    for rank in (0, 2):
        story.hears(rank, reports.Succeeded(0, {}))
    assert story.finished() == ev.Finish(None)


def test_one_must_be_left_that_knows_the_state():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    dies(story, 2)
    assert story.phase is Phase.TRAINING
    dies(story, 0)
    assert story.finished().error is not None


def test_one_that_has_yet_to_make_a_step_doesnt_know_it():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 2)
    dies(story, 0)
    steps(story, 1)
    story(ev.WantsToJoin, 1, 2, 0)
    dies(story, 1)
    assert story.phase is Phase.COLLECTING
    assert story.finished().error is not None


def test_a_failure_that_ends_the_job_is_named_and_not_one_that_others_got_over():
    story = elastic()
    steps(story, 0, 1, 2)
    dies(story, 1)
    steps(story, 0, 2)
    dies(story, 2, kind="exception", signal=None)
    story.wait(5)
    assert story.finished().error.first.task == "worker:2"


def test_an_agent_that_does_not_come_is_not_waited_for():
    story = elastic(agents=True)
    steps(story, 0, 1, 2)
    found = story(ev.AgentLost, 1, 1, "gone")
    assert replaces(found) == [(1, 1, (0, 2), (0, 2))]
    assert ev.ReplaceAgent(1, 1) in found
    for _ in range(5):  # longer than start_timeout
        steps(story, 0, 2)
        story.wait(30, silent=(1,))
    assert story.phase is Phase.TRAINING
    assert story(ev.NotReplaced, 1, 1, "no room") != []
    assert story.phase is Phase.TRAINING


def joined(meetings, members, view):
    for rank in members:
        found = meetings.came(rank, Meet(INTRODUCTION, "strategy", "x", view))
    return found


def test_meetings_go_on_without_those_that_are_away():
    meetings = held(1, "a")
    meetings.came(2, Meet(1, "all_gather", "c"))
    told = meetings.replaced(commands.Replace(0, 1, 1, (0, 2)))
    assert [each.rank for each in told] == [0, 2]
    assert [values.unpack(base64.b64decode(told[0].command.values[1]))] == [None]
    assert [told[0].command.values[place] for place in (0, 2)] == ["a", "c"]
    (again,) = meetings.came(1, Meet(1, "all_gather", "b"))
    assert again.command.values == told[0].command.values


def test_a_guest_is_waited_for_once_its_group_has_formed():
    meetings = held(1, "abc")
    meetings.replaced(commands.Replace(0, 1, 1, (0, 2)))
    joined(meetings, (0, 2), 1)
    assert joined(meetings, (1,), 1) == []
    assert meetings.guests == {1}
    (told,) = meetings.replaced(commands.Replace(0, -1, 2))
    assert (told.rank, told.command.problem) == (1, "the group has changed meanwhile")
    meetings.came(0, Meet(2, "barrier", ""))
    assert len(meetings.came(2, Meet(2, "barrier", ""))) == 2
    assert len(joined(meetings, (0, 1, 2), 2)) == 3
    meetings.came(0, Meet(3, "barrier", ""))
    assert meetings.came(2, Meet(3, "barrier", "")) == []
    assert len(meetings.came(1, Meet(3, "barrier", ""))) == 3


def test_the_chief_that_is_there_has_the_word():
    meetings = held(1, "abc")
    meetings.replaced(commands.Replace(0, 0, 1, (1, 2)))
    assert meetings.chief == 1
    assert meetings.came(2, Meet(2, "broadcast", "")) == []
    answers = meetings.came(1, Meet(2, "broadcast", "word"))
    assert [each.command.values for each in answers] == [["word"]] * 2


def test_a_chief_that_is_lost_before_its_word_is_waited_for():
    meetings = held(1, "abc")
    for rank in (1, 2):
        meetings.came(rank, Meet(2, "broadcast", ""))
    assert meetings.replaced(commands.Replace(0, 0, 1, (1, 2))) == []
    answers = meetings.came(0, Meet(2, "broadcast", "word"))
    assert [each.command.values for each in answers] == [["word"]] * 3
