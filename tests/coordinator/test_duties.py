"""What the state machine does about servers, an evaluator, and processes that are replaced."""

from __future__ import annotations

import pytest
from stories import CLOSE, SERVED, WATCHED, Story, failure

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.machine import MOST_REPLACEMENTS
from gridflow._coordinator.phases import Phase
from gridflow._wire import commands, reports

CHIEF, WORKER, PS, EVALUATOR = range(4)


def served(**options):
    """Return a story of parameter servers that stands in its training."""
    return Story(tasks=SERVED, strategy="parameter_server", **options).train()


def failed(rank, kind="signal", **fields):
    """Return the failure of one of the served tasks."""
    return failure(rank, kind=kind, tasks=SERVED, **fields)


def test_the_job_ends_when_the_chief_returns_and_the_evaluator_has_seen_the_last_checkpoint():
    story = served()
    assert story.hears(CHIEF, reports.Succeeded(0, {})) == [
        ev.Send(commands.EndEvaluation(), (EVALUATOR,))
    ]
    assert story.phase is Phase.EVALUATING
    assert story.hears(EVALUATOR, reports.Succeeded(0, {})) == [CLOSE]
    assert story.finished() == ev.Finish(None)


def test_an_evaluator_that_returned_before_is_not_waited_for():
    story = served()
    assert story.hears(EVALUATOR, reports.Succeeded(0, {})) == []
    assert story.hears(CHIEF, reports.Succeeded(0, {})) == [CLOSE]


def test_parameter_servers_whose_function_returned_do_not_end_the_job():
    tasks = (SERVED[WORKER], SERVED[PS])
    story = Story(tasks=tasks, strategy="server").train()
    assert story.hears(1, reports.Succeeded(0, {})) == []
    assert story.phase is Phase.TRAINING
    assert story.hears(0, reports.Succeeded(0, {})) == [CLOSE]


def test_a_worker_that_joins_its_server_is_not_waited_for():
    story = Story(tasks=(SERVED[CHIEF], SERVED[WORKER]), strategy="server").train()
    assert story.hears(1, reports.Joined(generation=0)) == []
    assert story.hears(0, reports.Succeeded(0, {})) == [CLOSE]


def test_an_evaluator_that_is_too_slow_does_not_cost_the_result():
    story = served()
    story.hears(CHIEF, reports.Succeeded(0, {}))
    new = story.wait(25)
    assert any(
        isinstance(command, ev.Say) and "Deadlines.shutdown" in command.text for command in new
    )
    assert story.phase is Phase.CLOSING
    assert story.finished() == ev.Finish(None)


@pytest.mark.parametrize("kind", ["exception", "signal"])
def test_an_evaluator_that_fails_after_the_training_does_not_cost_the_result(kind):
    story = Story(tasks=WATCHED).train()
    story.hears(0, reports.Succeeded(0, {}))
    say, close = story.hears(1, reports.Failed(failure(1, kind=kind, tasks=WATCHED)))
    assert "evaluator:0" in say.text
    assert close == CLOSE
    assert story.finished() == ev.Finish(None)


@pytest.mark.parametrize("rank", [WORKER, EVALUATOR])
@pytest.mark.parametrize("kind", ["signal", "stopped", "exit"])
def test_a_worker_or_evaluator_whose_process_died_is_replaced_while_the_others_go_on(rank, kind):
    story = served()
    say, again = story.hears(rank, reports.Failed(failed(rank, kind)))
    assert str(SERVED[rank]) in say.text
    assert again == ev.Send(commands.Replace(0, rank), (rank,))
    assert story.phase is Phase.TRAINING
    story.hears(rank, reports.Ready(generation=0))
    story.wait(120)
    assert story.phase is Phase.TRAINING


@pytest.mark.parametrize("rank", [WORKER, EVALUATOR])
def test_one_that_dies_before_the_others_are_ready_is_replaced_and_waited_for(rank):
    story = Story(tasks=SERVED, strategy="parameter_server")
    for each in story.ranks:
        story.register(each)
    story.wait(60)
    story.hears(rank, reports.Ready(generation=0))
    _, again = story.hears(rank, reports.Failed(failed(rank)))
    assert again == ev.Send(commands.Replace(0, rank), (rank,))
    for each in set(story.ranks) - {rank}:
        story.hears(each, reports.Ready(generation=0))
    story.wait(60)
    assert story.phase is Phase.STARTING
    story.hears(rank, reports.Ready(generation=0))
    assert story.phase is Phase.TRAINING


def test_an_exception_of_the_evaluators_function_is_not_met_by_doing_it_again():
    story = served()
    story.hears(EVALUATOR, reports.Failed(failed(EVALUATOR, "exception")))
    assert story.phase is Phase.COLLECTING
    story.wait(2)
    assert story.finished().error.first.task == "evaluator:0"


@pytest.mark.parametrize("rank", [CHIEF, PS])
def test_the_death_of_a_chief_or_parameter_server_restarts_the_group(rank):
    story = served(restarts=1)
    story.hears(rank, reports.Failed(failed(rank)))
    story.wait(2)
    for each in story.ranks:
        story.hears(each, reports.Cleared(0))
    assert isinstance(story.commands[-1], ev.StartGeneration)
    assert story.machine.generation == 1


def test_a_process_that_dies_again_and_again_fails_the_group():
    story = served()
    for _ in range(MOST_REPLACEMENTS):
        assert story.hears(WORKER, reports.Failed(failed(WORKER)))[-1] == ev.Send(
            commands.Replace(0, WORKER), (WORKER,)
        )
        story.hears(WORKER, reports.Ready(generation=0))
    story.hears(WORKER, reports.Failed(failed(WORKER)))
    story.wait(2)
    error = story.finished().error
    assert type(error) is errors.TrainingFailed
    assert error.first.task == "worker:0"


def test_a_process_that_is_replaced_but_does_not_come_up_fails_the_group():
    story = served()
    story.hears(WORKER, reports.Failed(failed(WORKER)))
    story.wait(103)
    error = story.finished().error
    assert type(error) is errors.StartTimeout
    assert "did not come up" in str(error)


def test_only_those_that_are_awaited_are_asked_why_no_step_is_made():
    story = served()
    story.hears(CHIEF, reports.StepsDue(due=True, together=False, generation=0))
    assert story.wait(51) == [ev.Send(commands.Inspect(0))]
    story.hears(WORKER, reports.Stack("a server's stack", waiting=True, generation=0))
    story.hears(CHIEF, reports.Stack("the chief's stack", waiting=False, generation=0))
    story.wait(3)
    error = story.finished().error
    assert type(error) is errors.StepTimeout
    assert error.first.task == "chief:0"
    assert error.first.traceback == "the chief's stack"
