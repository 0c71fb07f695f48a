"""Checkpoint and exact resume: the same weights as if nothing had happened, killed at any step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gridflow import LocalLauncher, Restarts, TensorflowDistributor
from gridflow._features.checkpoints.store import CheckpointStore
from gridflow._spec.place import Place
from gridflow.errors import InvalidArgument, JobExists, TrainingFailed
from suite.waiting import LONGEST, patience, wait_for

pytestmark = pytest.mark.slow

ROWS, BATCH, EPOCHS = 96, 8, 3
STEPS = ROWS // 2 // BATCH


def data():
    """Return rows that a linear model with dropout can learn something from."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, 4)).astype("float32")
    return {"train": {"x": x, "y": (x @ [1.0, -2.0, 0.5, 3.0]).astype("float32")}}


def train(ctx, kill_at=None, make_callback=None):
    """Train; in the first generation rank 1 is killed after a number of steps."""
    import os
    import signal

    import keras

    class Kill(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if ctx.generation == 0 and ctx.rank == 1 and self.seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="relu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    rows = ctx.dataset("train", batch_size=8, features="x", label="y")
    callbacks = [*ctx.callbacks(), Kill(), *([make_callback(ctx)] if make_callback else [])]
    model.fit(rows, epochs=3, verbose=0, callbacks=callbacks)
    return model.get_weights()


OPTIONS = {"strategy": "multi_worker_mirrored", "seed": 11, "checkpoint_every": 1}


@pytest.fixture(scope="module")
def uninterrupted():
    """Return the result of a run in which nothing happens."""
    from gridflow import LocalLauncher, TensorflowDistributor

    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    return TensorflowDistributor(2, **OPTIONS, **quiet).run(train, data=data())


@pytest.mark.parametrize(
    ("kill_at", "every"), [(1, 1), (STEPS, 1), (STEPS + 2, 1), (3 * STEPS - 1, 4)]
)
def test_a_run_that_was_killed_ends_with_the_same_weights(uninterrupted, kill_at, every):
    from gridflow import LocalLauncher, TensorflowDistributor

    options = {**OPTIONS, "checkpoint_every": every}
    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    distributor = TensorflowDistributor(2, **options, **quiet, max_restarts=1)
    result = distributor.run(train, kill_at, data=data())
    assert len(result.attempts) == 2
    for ours, theirs in zip(result.value, uninterrupted.value, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-6
    assert result.history.keys() == uninterrupted.history.keys()
    for name, values in result.history.items():
        np.testing.assert_allclose(values, uninterrupted.history[name], rtol=1e-4, atol=1e-6)
    assert result.ledger.check() == []


def fail_at_once(ctx, steps):
    """Make a large checkpoint after each step, and fail right after one of these."""
    import keras

    class Fail(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == steps:
                raise RuntimeError("on purpose")

    with ctx.strategy.scope():
        layers = [keras.layers.Dense(5_000_000), keras.layers.GlobalAveragePooling1D()]
        model = keras.Sequential(
            [keras.Input((4,)), layers[0], keras.layers.Reshape((-1, 1)), layers[1]]
        )
        model.compile("sgd", "mse")
    rows = ctx.dataset("train", batch_size=8, features="x", label="y")
    model.fit(rows, verbose=0, callbacks=[*ctx.callbacks(), Fail()])


def test_a_checkpoint_that_is_still_being_written_outlives_the_failure(tmp_path):
    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    distributor = TensorflowDistributor(
        1, checkpoint_dir=str(tmp_path), checkpoint_every=1, **quiet
    )
    with pytest.raises(TrainingFailed, match="on purpose"):
        distributor.run(fail_at_once, 2, data=data())
    latest, unreadable = CheckpointStore(tmp_path).latest()
    assert (latest.place, unreadable) == (Place(0, 0, 2), [])


def slow(folder):
    """Return what makes a callback that notes each step, and waits in the middle for others."""

    def make(ctx):

        import keras

        class Steps(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                step = int(self.model.optimizer.iterations.numpy())
                with (folder / f"steps-{ctx.rank}-{ctx.generation}").open("a") as file:
                    file.write(f"{step}\n")
                time.sleep(0.2)  # a report is on its way
                if step == 9:
                    wait_for((folder / "go").exists, "the word to go on")

        return Steps()

    return make


def steps(folder, rank):
    """Return the steps that a rank has begun, by generation."""
    files = sorted(folder.glob(f"steps-{rank}-*"))
    return [[int(line) for line in file.read_text().split()] for file in files]


def check_steps(folder, done_before):
    """Fail if a generation went on elsewhere, or more than one step was made in vain."""
    for rank in (0, 1):
        before, after = steps(folder, rank)
        assert after == list(range(done_before, 3 * STEPS))
        assert len(before) + len(after) <= 3 * STEPS + 1


def check_same(weights, history, uninterrupted):
    for ours, theirs in zip(weights, uninterrupted.value, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-6
    for name, values in history.items():
        np.testing.assert_allclose(values, uninterrupted.history[name], rtol=1e-4, atol=1e-6)


def test_a_group_that_is_to_move_saves_where_it_stands_and_ends_with_the_same_weights(
    uninterrupted, tmp_path, capsys
):
    options = {**OPTIONS, "checkpoint_every": None, "logs": "none", "progress": False}
    distributor = TensorflowDistributor(
        2, **options, launcher=LocalLauncher(), restarts=Restarts(max_preemptions=1)
    )
    handle = distributor.start(train, None, slow(tmp_path), data=data())
    wait_for(lambda: "worker:0" in handle.report.tasks, "a step", seen=lambda: handle.report)
    handle._run.agent_leaving(1, 1, "its host is taken back")
    (tmp_path / "go").touch()
    result = handle.result(timeout=patience())
    assert result.preemptions == handle.report.preemptions == 1
    moved, last = result.attempts
    assert (moved.failure.task, moved.failure.kind) == ("worker:1", "preempted")
    epoch, step = last.resumed_from
    check_steps(tmp_path, epoch * STEPS + step)
    check_same(result.value, result.history, uninterrupted)
    assert result.ledger.check() == []
    said = capsys.readouterr().out
    assert "worker:1: its host is taken back. The group makes a checkpoint and moves" in said


def told_by_driver(*arguments):
    """Run a driver on a cluster of its own, one worker of which is decommissioned."""
    driver = Path(__file__).with_name("dynamic_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(driver.parents[1])},  # of the suite
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_moved(job, folder, uninterrupted):
    """Look whether a job has moved, though no restart was allowed, and lost nothing."""
    assert job["preemptions"] == 1
    (_, failure), (resumed_from, no_failure) = job["attempts"]
    assert failure["kind"] == "preempted"
    assert "is being decommissioned" in failure["summary"]
    assert no_failure is None
    # It goes on with the step before which it was told, or a later one if the word was on its way.
    done = resumed_from[0] * STEPS + resumed_from[1]
    assert done >= 9
    check_steps(folder, done)
    check_same(job["weights"], job["history"], uninterrupted)
    assert job["ledger"] == []


def test_under_dynamic_allocation_a_job_waits_for_executors_and_leaves_one_that_is_taken_back(
    uninterrupted, tmp_path
):
    told = told_by_driver(tmp_path)
    assert "plain (dynamic allocation is on)" in told["plan"]
    assert "can't give it more than 4" in told["too many"]
    assert "spark.dynamicAllocation.maxExecutors=4" in told["too many"]
    assert "start_timeout" in told["waited"]
    assert re.search(r"Spark has [0-3] of the 4 task slots that the job needs, on", told["waited"])
    # It began with fewer executors than workers, and took longer than an idle one may live.
    assert told["executors"] < 2
    check_moved(told["job"], tmp_path, uninterrupted)


def test_a_standalone_cluster_is_asked_for_another_executor_where_none_is_left(tmp_path):
    assert told_by_driver(tmp_path, "anew", "static")["anew"] == "trained"


@pytest.mark.parametrize(
    ("how", "allocation"),
    [
        ("worker", "static"),
        ("evicted", "static"),
        ("evicted", "dynamic"),
        # Spark asks for as many executors as before: its master has to be reminded.
        ("worker", "steady"),
    ],
)
def test_a_job_moves_when_it_loses_a_worker_or_an_executor_under_either_allocation(
    how, allocation, uninterrupted, tmp_path
):
    check_moved(told_by_driver(tmp_path, how, allocation)["job"], tmp_path, uninterrupted)


def test_where_workers_come_and_go_the_others_go_on_without_an_executor_that_is_taken_back(
    tmp_path,
):
    told = told_by_driver(tmp_path, "without", "static")
    assert told["steps"] >= EPOCHS * STEPS
    assert told["sizes"][0] == 1
    assert told["replaced"] == ["preempted"]
    assert told["preemptions"] == 0
    assert told["ledger"] == []


def test_another_run_goes_on_from_what_a_failed_one_left_in_checkpoint_dir(uninterrupted, tmp_path):
    from gridflow import LocalLauncher, TensorflowDistributor, TrainingFailed

    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    distributor = TensorflowDistributor(2, **OPTIONS, **quiet, checkpoint_dir=tmp_path)
    with pytest.raises(TrainingFailed):
        distributor.run(train, STEPS + 3, data=data())
    assert list(tmp_path.glob("checkpoint-*.npz"))
    result = distributor.run(train, data=data())
    assert result.attempts[0].resumed_from is not None
    for ours, theirs in zip(result.value, uninterrupted.value, strict=True):
        assert np.abs(ours - theirs).max() <= 1e-6
    assert list(tmp_path.iterdir()) == []
    for name, values in uninterrupted.history.items():  # the epoch before is there, too
        np.testing.assert_allclose(result.history[name], values, rtol=1e-4, atol=1e-6)


def test_one_job_at_a_time_has_a_checkpoint_dir(tmp_path):
    end = tmp_path / "end"

    def waits(ctx, value):
        wait_for(end.exists, "the end")
        return value

    distributor = TensorflowDistributor(
        1,
        "none",
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        checkpoint_dir=tmp_path / "checkpoints",
    )
    first = distributor.start(waits, "first")
    try:
        who = rf"in use by job {first.job_dir.name} \(process {os.getpid()} on "
        with pytest.raises(JobExists, match=who):
            distributor.start(waits, "second")
    finally:
        end.touch()
    assert first.result().value == "first"
    assert distributor.run(waits, "second").value == "second"
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_checkpoint_dir_that_is_a_file_is_refused_at_the_call(tmp_path):
    (tmp_path / "file").write_text("")
    distributor = TensorflowDistributor(
        1, launcher=LocalLauncher(), checkpoint_dir=tmp_path / "file"
    )
    with pytest.raises(InvalidArgument, match="can't write to checkpoint_dir='.*'"):
        distributor.start(train)


def test_a_restart_says_why_and_a_resume_that_another_number_of_workers_began(tmp_path, capsys):
    def train(ctx):
        if ctx.generation == 0 and ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.generation

    store = CheckpointStore(tmp_path / "checkpoints", num_workers=3)
    made = store.incoming(0, 0)
    with made.open("wb") as file:
        np.savez(file)
    store.commit(made, Place(0, 4, 0))
    distributor = TensorflowDistributor(
        2,
        "none",
        launcher=LocalLauncher(),
        logs="none",
        progress=False,
        max_restarts=1,
        checkpoint_dir=tmp_path / "checkpoints",
    )
    assert distributor.run(train).values == [1, 1]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "[gridflow] Generation 0 starts from epoch 4, step 0"
    assert "resuming with 2 workers from a checkpoint of 3" in said[1]
    assert said[2].startswith(
        "[gridflow] worker:1: its process was killed by SIGKILL. Generation 1"
    )
    assert store.workers is None  # deleted with the checkpoints


def twice(ctx):
    """Call fit two times, the second time for fewer epochs; return both histories."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = ctx.dataset("train", batch_size=8, features="x", label="y")
    fits = [
        model.fit(rows, epochs=epochs, verbose=0, callbacks=ctx.callbacks()) for epochs in (3, 2)
    ]
    return [fit.history for fit in fits]


def test_each_fit_has_a_history_of_its_own():
    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    handle = TensorflowDistributor(1, "none", **quiet).start(twice, data=data())
    result = handle.result()
    assert handle.report.tasks["worker:0"].place == Place(1, 1, ROWS // BATCH)
    assert [len(each["loss"]) for each in result.histories] == [3, 2]
    for ours, theirs in zip(result.histories, result.value, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"])
    assert result.history == result.histories[-1]


def two_fits(ctx, checkpoints):
    """Die in the second epoch of the second fit, once."""
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = {"features": ["x"], "label": "y", "batch_size": 32}

    class Dies(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if ctx.generation == 0 and epoch == 1:
                wait_for(lambda: list(checkpoints.glob("checkpoint-0001-*")), "one of this fit")
                os.kill(os.getpid(), signal.SIGKILL)

    model.fit(ctx.dataset(**rows), epochs=5, verbose=0, callbacks=ctx.callbacks())
    model.fit(ctx.dataset(**rows), epochs=3, verbose=0, callbacks=[*ctx.callbacks(), Dies()])
    return model.get_weights()


def test_a_restart_in_a_second_fit_goes_on_in_it(tmp_path):
    x = np.random.default_rng(3).normal(size=(96, 4)).astype("float32")
    rows = {"train": {"x": x, "y": x.sum(axis=1, keepdims=True)}}
    quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
    distributor = TensorflowDistributor(
        1, "none", **quiet, max_restarts=1, checkpoint_dir=tmp_path, checkpoint_every=1
    )
    result = distributor.run(two_fits, tmp_path, data=rows)
    # Checkpoints are on their way when it dies, before the end of its second epoch is one.
    before = {Place(1, epoch, step) for epoch in (0, 1) for step in range(3)}
    assert result.attempts[1].resumed_at in before
    assert [len(fit["loss"]) for fit in result.histories] == [5, 3]
