"""Each way to fail: a typed error that names the first failing task, and nothing left behind."""

from __future__ import annotations

import os
import signal

import pytest

from gridflow import Deadlines, Spool, errors
from gridflow._training import main
from gridflow.testing.deaths import agent_of_this_task


def expect(kind, distributor, function, *args, **kwargs):
    with pytest.raises(kind) as caught:
        distributor.run(function, *args, **kwargs)
    error = caught.value
    assert type(error) is kind
    assert error.first.host
    assert error.first.task in str(error)
    return error


def test_an_exception_on_one_rank_is_named_with_its_traceback_and_log(distribute):
    def train(ctx):
        import time

        print(f"last words of {ctx.rank}", flush=True)
        if ctx.rank == 1:
            raise ValueError("learning rate is -1")
        time.sleep(60)

    error = expect(errors.TrainingFailed, distribute(), train)
    assert error.first.task == "worker:1"
    assert error.first.kind == "exception"
    assert error.first.summary == "the function raised ValueError: learning rate is -1"
    assert 'raise ValueError("learning rate is -1")' in error.first.traceback
    assert "gridflow/training" not in error.first.traceback
    assert "last words of 1" in error.first.log_tail


def test_an_exception_on_all_ranks_names_them_all(distribute):
    def train(ctx):
        raise RuntimeError(f"rank {ctx.rank} is unhappy")

    error = expect(errors.TrainingFailed, distribute(), train)
    assert {failure.task for failure in error.failures} == {"worker:0", "worker:1"}


def test_a_call_of_sys_exit_is_reported_with_its_code(distribute):
    def train(ctx):
        import sys
        import time

        if ctx.rank == 1:
            sys.exit(3)
        time.sleep(60)

    error = expect(errors.TrainingFailed, distribute(), train)
    assert (error.first.task, error.first.kind, error.first.exit_code) == ("worker:1", "exit", 3)


def test_a_code_that_a_process_cant_exit_with_is_no_success(distribute):
    def train():
        import sys

        sys.exit(256)

    error = expect(errors.TrainingFailed, distribute(num_workers=1), train)
    assert (error.first.kind, error.first.exit_code) == ("exit", 1)
    assert error.first.summary == "the function called sys.exit(256)"


def test_sys_exit_without_a_code_is_success(distribute):
    def train():
        import sys

        sys.exit()

    assert distribute().run(train).value is None


def closed(sys):
    sys.stdout.close()


def missing(sys):
    sys.stdout = sys.stderr = None


def only_written(sys):
    class Logger:
        def __init__(self, stream):
            self.write = stream.write

    sys.stdout, sys.stderr = Logger(sys.stdout), Logger(sys.stderr)


@pytest.mark.parametrize("change", [closed, missing, only_written])
def test_a_function_may_leave_its_output_in_any_state(distribute, change):
    def train(how):
        import sys

        change(sys)
        if how == "fails":
            raise ValueError("learning rate is -1")
        return how

    distributor = distribute(num_workers=1)
    assert distributor.run(train, "returns").value == "returns"
    error = expect(errors.TrainingFailed, distributor, train, "fails")
    assert error.first.summary == "the function raised ValueError: learning rate is -1"


def test_a_function_that_closes_files_it_did_not_open_fails_and_hears_why(distribute):
    def train():
        import os

        os.closerange(3, 4096)

    error = expect(errors.TrainingFailed, distribute(num_workers=1), train)
    assert "has closed file descriptors that it didn't open" in str(error)


def test_a_process_that_ends_before_its_function_is_no_success(distribute):
    def train():
        import os

        os._exit(0)

    error = expect(errors.TrainingFailed, distribute(num_workers=1), train)
    assert error.first.summary == "its process exited with code 0 before its work was done"


def test_an_exception_without_words_is_still_one(distribute):
    def train():
        class Speechless(Exception):
            def __str__(self):
                raise KeyError("code")

        raise Speechless

    error = expect(errors.TrainingFailed, distribute(num_workers=1), train)
    assert error.first.kind == "exception"
    assert error.first.summary == "the function raised Speechless: <exception str() failed>"


@pytest.mark.parametrize("end", ["returns", "raises", "exits"])
def test_a_child_that_the_function_forks_never_speaks_for_the_task(distribute, end):
    def train(end):
        import os
        import sys

        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if end == "raises":
            raise ValueError("only the child")
        if end == "exits":
            sys.exit(3)
        return "the child's"

    code = {"returns": 0, "raises": 1, "exits": 3}[end]
    assert distribute(num_workers=1).run(train, end).value == code


def test_a_second_run_right_after_a_failed_one_works(distribute):
    def fail():
        raise RuntimeError("no")

    expect(errors.TrainingFailed, distribute(), fail)
    assert distribute().run(lambda: "fine").value == "fine"


def test_a_module_that_the_tasks_lack_is_named_with_a_hint(distribute):
    def train():
        import a_module_of_nobody

        return a_module_of_nobody.__name__

    error = expect(errors.TrainingFailed, distribute(), train)
    assert "a_module_of_nobody" in error.first.summary
    assert "'a_module_of_nobody'" in error.first.hint


def test_a_child_of_the_function_does_not_outlive_a_failure(distribute):
    def train(ctx):
        import subprocess
        import sys

        sleep = [sys.executable, "-c", "import time; time.sleep(600) # gridflow._training"]
        subprocess.Popen(sleep)
        subprocess.Popen(sleep, start_new_session=True)
        raise RuntimeError("no")

    expect(errors.TrainingFailed, distribute(), train)  # the fixture looks for the children


def train_mirrored(ctx, deed, victim):
    """Train; at the third step of the first epoch one rank does something to itself."""
    import os
    import signal

    import numpy as np

    import keras

    class Deed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2 and ctx.rank == victim and ctx.generation == 0:
                if deed == "raise":
                    raise ValueError("enough")
                print(f"here comes {deed}", flush=True)
                os.kill(os.getpid(), getattr(signal, deed))

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((64, 4), "float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=50, verbose=0, callbacks=[Deed()])
    return "trained"


def test_a_rank_that_is_stopped_is_named_whatever_it_does(distribute):
    def train(ctx):
        import os
        import signal
        import time

        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    error = expect(errors.TrainingFailed, distribute(deadlines=Deadlines(heartbeat=3)), train)
    assert (error.first.task, error.first.kind) == ("worker:1", "stopped")


MIRRORED = {"strategy": "multi_worker_mirrored", "deadlines": Deadlines(heartbeat=5)}


@pytest.mark.parametrize("victim", [0, 1], ids=["chief", "worker"])
@pytest.mark.parametrize("deed", ["SIGKILL", "SIGSEGV", "SIGSTOP", "raise"])
def test_a_rank_that_fails_in_the_middle_of_an_epoch_is_named(distribute, deed, victim):
    error = expect(errors.TrainingFailed, distribute(**MIRRORED), train_mirrored, deed, victim)
    assert error.first.task == f"worker:{victim}", str(error)
    if deed == "raise":
        assert "ValueError: enough" in error.first.summary
    elif deed == "SIGSTOP":
        assert error.first.kind == "stopped"
    else:
        assert error.first.signal == deed
        assert f"here comes {deed}" in error.first.log_tail
    if deed == "SIGSEGV":
        assert "on_train_batch_end" in error.first.traceback


def test_a_killed_rank_is_followed_by_another_generation(distribute):
    distributor = distribute(**MIRRORED, max_restarts=1)
    result = distributor.run(train_mirrored, "SIGKILL", 1)
    assert result.value == "trained"
    assert [attempt.generation for attempt in result.attempts] == [0, 1]
    assert result.attempts[0].failure.signal == "SIGKILL"


def test_a_rank_that_stops_making_steps_is_named_with_its_stack(distribute):
    def train(ctx):
        import numpy as np

        import keras

        class Sleepy(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                import time

                if ctx.rank == 1 and batch == 3:
                    time.sleep(600)

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.ones((64, 4), "float32")
        callbacks = [*ctx.callbacks(), Sleepy()]
        model.fit(x, x[:, :1], batch_size=8, epochs=50, verbose=0, callbacks=callbacks)

    error = expect(
        errors.StepTimeout,
        distribute(**MIRRORED | {"deadlines": Deadlines(heartbeat=5, step=8)}),
        train,
    )
    assert error.first.task == "worker:1"
    assert "time.sleep(600)" in error.first.traceback


_WHERE = "Graph execution error:\n\nDetected at node N defined at (most recent call last):\n\n"
_NODE = "\n\t [[{{node N}}]] [Op:f]"
_RAISED = "ValueError: no\nTraceback (most recent call last):\n\n  File 'f'\n\nValueError: no\n\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{_WHERE}indices[0] = 7 is not in [0, 3){_NODE}", "indices[0] = 7 is not in [0, 3)"),
        (f"{_WHERE}{_RAISED}{_NODE}", "ValueError: no"),
        ("Graph execution error, and nothing else", "Graph execution error, and nothing else"),
    ],
    ids=["an operation", "a function", "neither"],
)
def test_the_summary_of_a_graphs_error_says_what_failed(text, words):
    assert main._summary(RuntimeError(text)).startswith(
        f"the function raised RuntimeError: {words}"
    )


def fit_alone(ctx, epochs):
    """Call ``fit`` with no callback of gridflow's, if for any epoch."""
    import time

    import numpy as np

    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if not epochs[ctx.rank]:
        time.sleep(600)
    x = np.ones((64, 4), "float32")
    model.fit(x, x[:, :1], batch_size=8, epochs=epochs[ctx.rank], verbose=0)


def test_a_deadline_holds_from_the_first_step_on_in_every_fit(distribute):
    distributor = distribute(**MIRRORED | {"deadlines": Deadlines(heartbeat=5, step=6)})
    error = expect(errors.StepTimeout, distributor, fit_alone, (1, 0))
    assert error.first.task == "worker:1"
    assert "time.sleep(600)" in error.first.traceback


def test_a_peer_that_has_returned_is_noticed_by_those_in_a_collective(distribute):
    error = expect(errors.TrainingFailed, distribute(**MIRRORED), fit_alone, (1, 2))
    assert error.first.task == "worker:1"
    assert "rank 0 has returned from its function" in error.first.summary


def test_a_killed_agent_is_reported_as_lost_and_takes_its_task_along(distribute):
    def train(ctx):
        import time

        if ctx.rank == 1:
            os.kill(agent_of_this_task(), signal.SIGKILL)
        time.sleep(60)

    error = expect(errors.TaskLost, distribute(), train)
    assert error.first.task == "worker:1"


def test_a_spool_folder_that_can_not_be_used_is_named_with_the_option(distribute, tmp_path):
    (tmp_path / "file").touch()
    spool = Spool(dir=str(tmp_path / "file"))
    with pytest.raises(errors.TaskLost, match=r"file on .*\. Choose another one with Spool"):
        distribute(spool=spool).run(lambda: None)


def test_a_frozen_agent_is_reported_as_lost(distribute):
    def train(ctx):
        import time

        if ctx.rank == 1:
            os.kill(agent_of_this_task(), signal.SIGSTOP)
        time.sleep(60)

    error = expect(errors.TaskLost, distribute(deadlines=Deadlines(heartbeat=3)), train)
    assert error.first.task == "worker:1"
    assert "no heartbeat from its agent for 3 seconds" in str(error)


def test_a_killed_agent_is_replaced_under_max_restarts(distribute):
    def train(ctx):
        import time

        if ctx.rank == 1 and ctx.generation == 0:
            os.kill(agent_of_this_task(), signal.SIGKILL)
        if ctx.generation == 0:
            time.sleep(60)
        return ctx.generation

    result = distribute(max_restarts=1).run(train)
    assert result.value == 1
    assert result.attempts[0].failure.kind == "lost"
