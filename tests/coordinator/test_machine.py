"""The state machine: the stories that it must tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stories import CLOSE, ENVIRONMENT, WATCHED, Story, failure

from gridflow import errors
from gridflow._coordinator import events as ev
from gridflow._coordinator.phases import Phase
from gridflow._spec.cluster import Task
from gridflow._wire import commands, reports


def test_a_job_that_goes_well_launches_starts_closes_and_finishes():
    story = Story()
    assert story.commands == [ev.BeginLaunch(1)]
    assert story.register(0) == []
    assert story.register(1) == [ev.StartGeneration(0, ("h0:1", "h1:1"))]
    assert story.hears(0, reports.Ready(generation=0)) == []
    story.hears(1, reports.Ready(generation=0))
    assert story.phase is Phase.TRAINING
    assert story.hears(1, reports.Succeeded(0, {})) == []
    assert story.hears(0, reports.Succeeded(0, {})) == [CLOSE]
    assert story.finished() == ev.Finish(None)
    assert [attempt.failure for attempt in story.machine.attempts] == [None]


def test_the_cause_is_named_even_if_its_echo_arrives_first():
    story = Story().train()
    assert story.hears(0, reports.Failed(failure(0, consequence=True))) == []
    story.wait(1)
    story.hears(1, reports.Failed(failure(1)))
    error = story.finished().error
    assert type(error) is errors.TrainingFailed
    assert error.first.task == "worker:1"
    assert [each.task for each in error.failures] == ["worker:1", "worker:0"]


def test_an_echo_waits_for_the_silence_of_the_one_who_caused_it():
    story = Story().train()
    story.wait(8, silent=[1])
    story.hears(0, reports.Failed(failure(0, consequence=True)))
    story.wait(6, silent=[1])
    error = story.finished().error
    assert type(error) is errors.TaskLost
    assert error.first.task == "worker:1"
    assert "Deadlines.heartbeat" in str(error)


def test_an_echo_without_a_cause_ends_the_job_all_the_same():
    story = Story().train()
    story.hears(0, reports.Failed(failure(0, consequence=True)))
    story.wait(30)
    assert story.finished().error.first.task == "worker:0"


def test_a_failure_of_one_task_is_not_waited_for_longer_than_a_moment():
    story = Story().train()
    story.hears(1, reports.Failed(failure(1)))
    assert CLOSE in story.wait(2)


def test_a_restart_clears_the_old_generation_in_living_agents():
    story = Story(restarts=1).train()
    story.hears(1, reports.Failed(failure(1)))
    assert ev.Send(commands.Clear(0, restart=True)) in story.wait(2)
    story.hears(0, reports.Cleared(0))
    assert story.hears(1, reports.Cleared(0)) == [ev.StartGeneration(1, ("h0:1", "h1:1"))]
    for rank in (0, 1):
        story.hears(rank, reports.Ready(generation=1))
    for rank in (0, 1):
        story.hears(rank, reports.Succeeded(1, {}))
    assert story.finished().error is None
    assert [attempt.generation for attempt in story.machine.attempts] == [0, 1]


def test_a_process_that_dies_before_its_generation_begins_has_failed_in_it():
    story = Story(restarts=1).train()
    story.hears(1, reports.Failed(failure(1)))
    story.wait(2)
    story.hears(0, reports.Cleared(0))
    story.hears(0, reports.Failed(failure(0, generation=1, kind="signal")))
    assert story.phase is Phase.CLEARING
    story.hears(1, reports.Cleared(0))
    story.wait(2)
    error = story.finished().error
    assert (error.first.task, error.first.kind) == ("worker:0", "signal")


def test_a_killed_process_is_followed_by_a_restart_at_once():
    killed = replace(failure(1, kind="signal"), signal="SIGKILL")
    story = Story(restarts=1).train()
    assert story.hears(1, reports.Failed(killed)) == [ev.Send(commands.Clear(0, restart=True))]
    story = Story(restarts=0).train()
    assert story.hears(1, reports.Failed(killed)) == []  # the error is to tell of its echoes, too
    assert story.phase is Phase.COLLECTING


def test_restarts_are_counted():
    story = Story(restarts=1).train()
    for generation in (0, 1):
        story.hears(1, reports.Failed(failure(1, generation=generation)))
        story.wait(2)
        for rank in (0, 1):
            story.hears(rank, reports.Cleared(generation))
        for rank in (0, 1):
            story.hears(rank, reports.Ready(generation=generation + 1))
    assert len(story.finished().error.failures) == 1
    assert len(story.machine.attempts) == 2


def test_a_lost_agent_is_replaced_by_a_new_launch():
    story = Story(restarts=1).train()
    story(ev.AgentLost, 1, 1, "its executor died")
    story.wait(2, silent=[1])
    assert ev.Send(commands.Clear(0, restart=True)) in story.commands
    story.hears(0, reports.Cleared(0))
    assert story.phase is Phase.RELAUNCHING
    assert story.commands[-1] == ev.CancelLaunch(1)
    assert story(ev.LaunchEnded, 1) == [ev.BeginLaunch(2)]
    story.train()
    assert story.machine.generation == 1


def test_a_launch_that_dies_as_a_whole_is_followed_by_another():
    story = Story(restarts=1).train()
    story(ev.LaunchEnded, 1, errors.TaskLost("the stage failed"))
    story.wait(2)
    assert story.commands[-1] == ev.BeginLaunch(2)


def test_the_agents_of_a_launch_that_was_given_up_end_before_the_job_does():
    story = Story().train()
    story(ev.AgentLost, 1, 1, "its executor died")
    assert CLOSE in story(ev.LaunchEnded, 1, errors.TaskLost("it"), outlived=True)
    story.wait(2.1, silent=[1])  # nobody waits longer for what died
    assert story.phase is Phase.CLOSING
    assert story.hears(0, reports.Gone(), agent="one of the launch before") == []
    (finish,) = story.hears(0, reports.Gone())
    assert finish.error.first.task == "worker:1"
    assert story.phase is Phase.CLOSED


def test_what_a_dead_agent_leaves_has_its_time_from_the_death_on():
    story = Story().train()
    story.wait(1.5, silent=[1])
    story(ev.AgentLost, 1, 1, "its executor died")
    story(ev.LaunchEnded, 1, errors.TaskLost("it"), outlived=True)
    story.hears(0, reports.Gone())
    story.wait(1.5, silent=[1])
    assert story.phase is Phase.CLOSING
    story.wait(1, silent=[1])
    assert story.phase is Phase.CLOSED


def test_the_agents_of_a_launch_that_was_cancelled_end_before_the_job_does():
    story = Story().train()
    story(ev.Interrupted)
    story(ev.LaunchEnded, 1, outlived=True)
    assert story.hears(1, reports.Gone()) == []
    assert story.hears(0, reports.Gone()) == [ev.Finish(None, interrupted=True)]


def test_an_agent_that_dies_without_a_last_word_is_waited_for_a_moment_only():
    story = Story().train()
    story(ev.LaunchEnded, 1, errors.TaskLost("it"), outlived=True)
    story.wait(4, silent=[0, 1])
    assert story.phase is Phase.CLOSING
    story.wait(2, silent=[0, 1])
    assert story.phase is Phase.CLOSED


def test_an_agent_that_does_not_end_is_waited_for_until_shutdown_timeout():
    story = Story().train()
    story(ev.LaunchEnded, 1, errors.TaskLost("it"), outlived=True)
    story.wait(story.machine.deadlines.shutdown - 1)
    assert story.phase is Phase.CLOSING
    story.wait(2)
    assert story.phase is Phase.CLOSED


def test_a_dataset_without_rows_ends_the_job_whatever_was_to_be_tried_again():
    story = Story(restarts=2)
    story.register(0)
    story.register(1)
    assert story(ev.RowsUnfit, "dataset 'train' has no rows") == [CLOSE]
    error = story.finished().error
    assert type(error) is errors.DataError
    assert "dataset 'train' has no rows" in str(error)


def test_rows_that_spark_cant_compute_end_the_job_whatever_was_to_be_tried_again():
    story = Story(restarts=2).train()
    error = errors.DataError("[CAST_OVERFLOW]")
    assert story(ev.LaunchEnded, 1, error) == [CLOSE, ev.Finish(error)]


@pytest.mark.parametrize("is_training", [False, True])
def test_rows_are_computed_again_after_what_spark_says_may_pass(is_training):
    story = Story(restarts=1)
    if is_training:
        story.train()
    error = errors.DataError("Spark failed to compute the rows\nof data=")
    error.spark_errors = ("org.apache.spark.shuffle.FetchFailedException",)
    assert story(ev.LaunchEnded, 1, error) == [ev.BeginLaunch(2)]
    (attempt,) = story.machine.attempts
    failure = attempt.failure
    assert (failure.task, failure.kind, failure.generation) == ("Spark", "data", 0)
    assert failure.summary == "Spark failed to compute the rows"
    assert failure.spark_errors == error.spark_errors
    assert story(ev.LaunchEnded, 2, error)[-1] == ev.Finish(error)
    assert story.phase is Phase.CLOSED


def test_a_launch_that_is_lost_before_all_have_come_is_followed_by_another():
    story = Story(restarts=1)
    story.register(0)
    error = errors.TaskLost("FetchFailed")
    assert story(ev.LaunchEnded, 1, error) == [ev.BeginLaunch(2)]
    story.train()
    assert story.machine.generation == 1


FROZEN = "the JVM of its executor 1 (pid 7) has been frozen for 10 seconds"


def test_a_frozen_executor_is_replaced_and_a_new_launch_follows():
    story = Story(restarts=1).train()
    assert story.hears(1, reports.ExecutorFrozen(FROZEN)) == [ev.ReplaceExecutor(1, 1)]
    story.wait(2)  # its agent is alive, and hears
    assert ev.Send(commands.Clear(0, restart=True)) in story.commands
    story.hears(0, reports.Cleared(0))
    assert story.commands[-1] == ev.CancelLaunch(1)
    assert story(ev.LaunchEnded, 1) == [ev.BeginLaunch(2)]
    assert FROZEN in story.machine.attempts[0].failure.summary


def test_a_frozen_executor_ends_a_job_without_restarts_and_its_agent_is_waited_for():
    story = Story().train()
    story.hears(1, reports.ExecutorFrozen(FROZEN))
    assert story.wait(2) == [CLOSE, ev.CancelLaunch(1)]
    story(ev.LaunchEnded, 1, outlived=True)
    story.hears(0, reports.Gone())
    assert story.phase is Phase.CLOSING
    (finish,) = story.hears(1, reports.Gone())
    assert type(finish.error) is errors.TaskLost
    assert FROZEN in str(finish.error)


def test_a_frozen_executor_is_replaced_while_the_job_ends():
    story = Story().train()
    story(ev.Interrupted)
    assert story.hears(1, reports.ExecutorFrozen(FROZEN)) == [ev.ReplaceExecutor(1, 1)]
    assert story.phase is Phase.CLOSING


def test_a_loss_after_the_drivers_own_standstill_says_so():
    story = Story().train()
    story(ev.DriverStoodStill, 130)
    story(ev.LaunchEnded, 1)
    story.wait(20, silent=[0, 1])
    words = "The driver itself had stood still for 130 seconds; agents wait"
    (finish,) = [c for c in story.commands if isinstance(c, ev.Finish)]
    assert f"{words} 120" in str(finish.error)


def test_a_loss_long_after_a_standstill_has_nothing_to_do_with_it():
    story = Story().train()
    story(ev.DriverStoodStill, 130)
    story.wait(60)
    story(ev.LaunchEnded, 1)
    story.wait(20, silent=[0, 1])
    (finish,) = [c for c in story.commands if isinstance(c, ev.Finish)]
    assert "The driver itself" not in str(finish.error)


def test_a_second_attempt_of_a_spark_task_means_that_the_first_is_gone():
    story = Story().train()
    story.register(1, agent="another")
    story.wait(2)
    error = story.finished().error
    assert type(error) is errors.TaskLost
    assert "when Spark retried the task" in str(error)


def test_the_environment_is_compared_before_anything_starts():
    story = Story()
    story.register(0)
    assert story.register(1, {**ENVIRONMENT, "tensorflow": "2.20.0"}) == [CLOSE]
    error = story.finished().error
    assert type(error) is errors.EnvironmentMismatch
    assert "worker:1 on host1: it has tensorflow 2.20.0, but worker:0 has 2.21.0" in str(error)


def test_every_task_that_does_not_fit_is_named_beside_the_driver():
    story = Story(tasks=[Task("worker", index) for index in range(4)])
    story.machine.environment = {"gridflow": ENVIRONMENT["gridflow"], "tensorflow": "2.21.0"}
    story.register(0, {**ENVIRONMENT, "tensorflow": "2.20.0"})
    story.register(1, {**ENVIRONMENT, "tensorflow": "2.20.0", "keras": "3.0.0"})
    story.register(2, {**ENVIRONMENT, "tensorflow": "2.20.0"})
    story.register(3)
    error = story.finished().error
    assert [failure.task for failure in error.failures] == ["worker:0", "worker:1", "worker:2"]
    said = "it has tensorflow 2.20.0, but worker:3 has 2.21.0 and the driver 2.21.0"
    assert error.first.summary == said  # the driver's version decides who is the odd one
    keras = f"it has keras 3.0.0, but worker:0 has {ENVIRONMENT['keras']} and the driver (none)"
    assert f"These don't match either:\n  worker:1 on host1: {said}; {keras}\n  worker:2 on" in str(
        error
    )
    assert "gridflow env pack" in error.first.hint


def test_missing_tensorflow_is_named_with_a_patch():
    story = Story(restarts=3)
    story.register(0)
    story.register(1, {**ENVIRONMENT, "tensorflow": "", "executable": "/usr/bin/python3"})
    error = story.finished().error
    assert type(error) is errors.EnvironmentMismatch
    assert "not installed for /usr/bin/python3" in str(error)
    assert "pip install 'gridflow[tensorflow]'" in str(error)


def test_tasks_that_never_register_end_the_job_at_the_deadline():
    story = Story()
    story.register(0)
    story.wait(101, silent=[1])
    assert ev.CancelLaunch(1) in story.commands
    error = story.finished().error
    assert type(error) is errors.StartTimeout
    assert error.first.task == "worker:1"
    assert "start_timeout" in str(error)


def test_tasks_that_never_come_up_end_the_job_at_the_deadline():
    story = Story()
    story.register(0)
    story.register(1)
    story.hears(0, reports.Ready(generation=0))
    story.wait(101)
    error = story.finished().error
    assert type(error) is errors.StartTimeout
    assert error.first.task == "worker:1"


def test_the_launchers_error_is_passed_on_when_nothing_came_to_life():
    story = Story()
    story(ev.LaunchEnded, 1, errors.NotEnoughSlots("too few"))
    assert story.phase is Phase.CLOSED
    assert type(story.commands[-1].error) is errors.NotEnoughSlots


def test_a_rank_without_steps_is_inspected_and_named():
    story = Story().train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=False, generation=0))
    assert ev.Send(commands.Inspect(0)) in story.wait(51)
    story.hears(0, reports.Stack("in TensorFlow", waiting=True, generation=0))
    story.hears(1, reports.Stack("time.sleep(1e9)", waiting=False, generation=0))
    story.wait(5)
    error = story.finished().error
    assert type(error) is errors.StepTimeout
    assert error.first.task == "worker:1"
    assert "time.sleep(1e9)" in str(error)
    assert error.first.stacks == {"worker:0": "in TensorFlow", "worker:1": "time.sleep(1e9)"}


def test_a_rank_that_is_done_stepping_is_not_waited_for():
    story = Story().train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=False, generation=0))
        story.hears(rank, reports.StepsDue(due=False, together=False, generation=0))
    story.wait(200)
    assert story.phase is Phase.TRAINING


def forsaken(**fields):
    """Return a story in which rank 0 has returned, and rank 1 is in a fit that takes both."""
    story = Story(step=1000, **fields).train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=True, generation=0))
    story.wait(30)
    assert ev.Send(commands.Inspect(0)) not in story.commands  # a step may take its time
    story.hears(0, reports.Succeeded(0, {}))
    story.wait(1)
    assert story.commands[-1] == ev.Send(commands.Inspect(0))
    return story


def test_who_waits_in_a_step_for_one_that_has_returned_is_not_left_waiting():
    story = forsaken()
    story.hears(0, reports.Stack("gone", waiting=False, generation=0))
    story.hears(
        1, reports.Stack("in a collective", waiting=True, in_step=True, idle=20.0, generation=0)
    )
    story.wait(1)
    error = story.finished().error
    assert type(error) is errors.StepTimeout
    assert error.first.task == "worker:1"
    assert "worker:0 has returned from the function" in error.first.summary
    assert "in a collective" in error.first.traceback


def test_a_callback_after_the_last_step_may_take_its_time_though_the_peer_has_returned():
    story = forsaken()
    for _ in range(5):
        story.hears(0, reports.Stack("gone", waiting=False, generation=0))
        story.hears(
            1, reports.Stack("exports", waiting=True, in_step=False, idle=20.0, generation=0)
        )
        story.wait(21)
    assert story.phase is Phase.TRAINING
    assert 4 <= story.commands.count(ev.Send(commands.Inspect(0))) <= 7
    story.hears(1, reports.Stack("a step", waiting=True, in_step=True, idle=3.0, generation=0))
    story.wait(5)  # it was made since the last sign
    assert story.phase is Phase.TRAINING


def in_a_step(idle):
    return reports.Stack("in a sum", waiting=True, in_step=True, idle=idle, generation=0)


def test_what_a_rank_sent_before_it_returned_may_be_on_its_way_twice_as_long_as_a_cut_may_last():
    story = Story(step=1000).train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=True, generation=0))
    story.wait(1)
    story.hears(0, reports.Succeeded(0, {}))
    for seconds in range(1, 19):  # after a cut of 9 seconds
        story.wait(1)
        story.hears(1, in_a_step(seconds))
    story.hears(1, reports.StepsDue(due=False, together=True, generation=0))
    story.wait(30)
    story.hears(1, reports.Succeeded(0, {}))
    assert story.finished().error is None


def test_what_was_reported_after_an_answer_counts_too():
    story = forsaken()
    story.hears(0, reports.Stack("gone", waiting=False, generation=0))
    story.hears(1, in_a_step(25.0))  # both came at once, after a cut
    story.hears(1, reports.StepsDue(due=False, together=True, generation=0))
    story.wait(30)
    assert story.phase is Phase.TRAINING


def test_an_answer_that_came_late_says_nothing_about_the_next_time():
    story = forsaken()
    story.wait(2)  # nobody answers: in a callback, C code holds the GIL
    story.hears(0, reports.Stack("gone", waiting=False, generation=0))
    story.hears(1, in_a_step(1.0))
    asked = story.commands.count(ev.Send(commands.Inspect(0)))
    story.wait(25)
    assert story.commands.count(ev.Send(commands.Inspect(0))) > asked
    assert story.phase is Phase.TRAINING


def test_a_rank_whose_agent_cant_be_reached_has_not_failed_to_make_steps():
    story = Story(step=8).train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=True, generation=0))
    story.wait(5)
    story.hears(0, reports.Succeeded(0, {}))
    story.wait(6, silent=[1])
    assert story.commands[-1] == ev.Send(commands.Inspect(0))
    story.hears(1)  # it gets the question with this, and what it had to report before comes
    story.hears(1, reports.StepsDue(due=True, together=True, generation=0))
    story.wait(5)
    assert story.phase is Phase.TRAINING
    story.wait(11, silent=[1])
    assert type(story.finished().error) is errors.TaskLost


def test_a_step_that_was_made_since_the_last_sign_counts():
    story = Story().train()
    for rank in (0, 1):
        story.hears(rank, reports.StepsDue(due=True, together=False, generation=0))
    assert ev.Send(commands.Inspect(0)) in story.wait(51)
    for rank in (0, 1):
        story.hears(rank, reports.Stack("a step", waiting=True, idle=4.0, generation=0))
    story.wait(40)
    assert story.phase is Phase.TRAINING
    assert ev.Send(commands.Inspect(0)) in story.wait(8)


def test_without_a_step_timeout_nothing_is_inspected():
    story = Story(step=None).train()
    story.hears(0, reports.StepsDue(due=True, together=False, generation=0))
    story.wait(1000)
    assert ev.Send(commands.Inspect(0)) not in story.commands


def test_a_job_that_takes_longer_than_it_may_is_ended():
    story = Story(restarts=5, run=100).train()
    story.wait(60)
    story.hears(1, reports.Failed(failure(1)))
    story.wait(2)
    for rank in (0, 1):
        story.hears(rank, reports.Cleared(0))
    for rank in (0, 1):
        story.hears(rank, reports.Ready(generation=1))
    assert story.phase is Phase.TRAINING
    story.wait(37)
    assert story.phase is Phase.TRAINING
    story.wait(2)
    error = story.finished().error
    assert type(error) is errors.RunTimeout
    assert "100 seconds (Deadlines.run)" in str(error)
    assert [attempt.generation for attempt in story.machine.attempts] == [0, 1]


def test_what_was_trained_in_time_is_kept_whatever_the_evaluator_takes():
    story = Story(tasks=WATCHED, run=10).train()
    story.hears(0, reports.Succeeded(0, {}))
    story.wait(11)
    assert story.finished() == ev.Finish(None)


def test_an_interrupt_closes_and_the_second_cancels():
    story = Story().train()
    assert story(ev.Interrupted) == [CLOSE]
    assert story(ev.Interrupted) == [ev.CancelLaunch(1)]
    assert story.finished().interrupted


def test_agents_that_dont_close_are_cancelled_then_given_up():
    story = Story().train()
    story(ev.Interrupted)
    assert story.wait(21) == [ev.CancelLaunch(1)]
    story.wait(21)
    assert story.phase is Phase.CLOSED


def test_reports_of_an_earlier_generation_change_nothing():
    story = Story(restarts=1).train()
    story.hears(1, reports.Failed(failure(1)))
    story.wait(2)
    for rank in (0, 1):
        story.hears(rank, reports.Cleared(0))
    assert story.phase is Phase.STARTING
    for rank in (0, 1):
        assert story.hears(rank, reports.Ready(generation=0)) == []
        assert story.hears(rank, reports.Failed(failure(rank))) == []
        assert story.hears(rank, reports.Succeeded(0, {})) == []
    assert story.phase is Phase.STARTING


def test_bad_rows_are_not_tried_again():
    story = Story(restarts=5).train()
    story.hears(0, reports.Failed(failure(0, kind="data")))
    story.wait(2)
    assert type(story.finished().error) is errors.DataError
