"""Loops of one's own go on after the loss of a rank, and in a restarted group."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from gridflow import LocalLauncher, Restarts, TensorflowDistributor

pytestmark = pytest.mark.slow

WORKERS, BATCH, EPOCHS = 3, 8, 3
#: Steps of an epoch: 200 rows.
STEPS = 9
X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
ROWS = {"x": X, "y": X[:, 0] ** 2}


def train(ctx, deaths, folder, pause):  # noqa: PLR0915 (one function, as a user's)
    """Train by `fit`, and in two loops of which the second has two optimizers and validates.

    `deaths`: By rank, when it dies, each once: ("first" or "second", the number of its step), or
        ("between", the same) for between the second loop's two exchanges; or ("then", 0).
    `pause`: Seconds after each step of the first loop.
    """
    import tensorflow as tf

    import keras

    def dies_at(*moment):
        mark = Path(folder, f"{ctx.rank}-{moment[0]}-{moment[1]}")
        if moment in deaths.get(ctx.rank, ()) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    began = ctx.all_gather(os.getpid())
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.2, seed=5)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        last = keras.optimizers.SGD(0.05)
        last.build(model.layers[-1].trainable_variables)
        changes = tf.Variable(0.0)
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
    fitted = model.fit(rows, epochs=1, verbose=0, callbacks=ctx.callbacks()).history["loss"]

    def gradients(x, y, variables):
        count = tf.cast(tf.shape(y)[0], tf.float32)
        total = tf.distribute.get_replica_context().all_reduce("SUM", count)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True)[:, 0] - y) ** 2) / total
        return tape.gradient(loss, variables)

    @tf.function
    def simple(x, y):
        weights = model.trainable_variables
        model.optimizer.apply_gradients(zip(gradients(x, y, weights), weights, strict=True))

    @tf.function
    def double(x, y, number):
        weights, head = model.layers[0].trainable_variables, model.layers[-1].trainable_variables
        all_of_it = model.trainable_variables
        found = dict(zip(map(id, all_of_it), gradients(x, y, all_of_it), strict=True))
        pairs = [(found.get(id(each), tf.zeros_like(each)), each) for each in weights + head]
        model.optimizer.apply_gradients(pairs)
        changes.assign_add(1.0)
        tf.py_function(lambda at: dies_at("between", int(at)), [number], [])
        last.apply_gradients(zip(gradients(x, y, head), head, strict=True))

    first = ctx.loop(model, rows, epoch=0, done=0)

    def steps():
        while first.epoch < EPOCHS:
            for x, y in first.batches(rows):
                ctx.strategy.run(simple, args=(x, y))
                first.done += 1
                Path(folder, "looping").touch()
                time.sleep(pause)
                dies_at("first", first.done)
            first.epoch += 1

    first.run(steps)
    second = ctx.loop(model, last, changes, rows, epoch=0, done=0, losses=[])

    def more_steps():
        while second.epoch < EPOCHS:
            for x, y in second.batches(rows):
                ctx.strategy.run(double, args=(x, y, second.done + 1))
                second.done += 1
                dies_at("second", second.done)
            validation = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
            second.losses.append(model.evaluate(validation, verbose=0))
            second.epoch += 1
        return "done"

    made = second.run(more_steps)
    dies_at("then", 0)
    return {
        "began": began,
        "ended": ctx.all_gather(os.getpid()),
        "weights": np.concatenate([np.ravel(each) for each in model.get_weights()]),
        "fitted": ctx.all_gather(fitted),
        "losses": second.losses,
        "counts": [first.epoch, first.done, second.done, float(changes)],
        "made": made,
    }


def run(function, *args, **options):
    return start(function, *args, **options).result()


def start(function, *args, pause=0, **options):
    distributor = TensorflowDistributor(
        WORKERS,
        "multi_worker_mirrored",
        launcher=LocalLauncher(),
        seed=1,
        logs="none",
        progress=False,
        **options,
    )
    return distributor.start(function, *args, pause, data={"train": ROWS})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Give what a run returns in which nobody dies, and nobody could be replaced."""
    value = run(train, {}, str(tmp_path_factory.mktemp("marks"))).value
    assert value["counts"] == [EPOCHS, EPOCHS * STEPS, EPOCHS * STEPS, EPOCHS * STEPS]
    assert value["made"] == "done"
    return value


def check(value, undisturbed):
    np.testing.assert_allclose(value["weights"], undisturbed["weights"], atol=1e-6)
    np.testing.assert_allclose(value["losses"], undisturbed["losses"], atol=1e-6)
    assert value["counts"] == undisturbed["counts"]
    assert value["made"] == "done"
    np.testing.assert_allclose(value["fitted"], [undisturbed["fitted"][0]] * WORKERS, atol=1e-6)


@pytest.mark.parametrize(
    "deaths",
    [
        {1: [("first", 5)]},
        {0: [("first", STEPS)], 2: [("first", STEPS + 1)]},
        {2: [("second", 4)]},
        {0: [("between", 5)]},
        {1: [("second", 2 * STEPS)]},
    ],
    ids=[
        "in the first loop",
        "the chief, as a pass ends, and another",
        "in the second",
        "between two updates of a step",
        "before a validation",
    ],
)
def test_a_rank_is_replaced_and_the_model_is_the_same(deaths, undisturbed, tmp_path):
    result = run(train, deaths, str(tmp_path), restarts=Restarts(max_replacements=3))
    value = result.value
    check(value, undisturbed)
    pairs = zip(value["began"], value["ended"], strict=True)
    assert [rank for rank, (old, new) in enumerate(pairs) if old != new] == sorted(deaths)
    assert [attempt.failure for attempt in result.attempts] == [None]
    assert result.ledger.check() == []


def test_a_group_that_is_to_move_saves_where_the_loop_is(undisturbed, tmp_path):
    handle = start(train, {}, str(tmp_path), restarts=Restarts(max_preemptions=1), pause=0.2)
    until = time.monotonic() + 60
    while not (tmp_path / "looping").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    handle._run.agent_leaving(1, 1, "its host is taken back")
    result = handle.result()
    check(result.value | {"fitted": undisturbed["fitted"]}, undisturbed)
    assert result.preemptions == 1
    assert result.attempts[1].resumed_from is not None


@pytest.mark.parametrize("moment", [("first", STEPS + 4), ("second", 6), ("then", 0)])
def test_a_restarted_group_goes_on_at_the_checkpoint(moment, undisturbed, tmp_path):
    options = {"max_restarts": 1, "checkpoint_every": 2}
    result = run(train, {1: [moment]}, str(tmp_path), **options)
    check(result.value | {"fitted": undisturbed["fitted"]}, undisturbed)
    first, second = result.attempts
    assert first.failure.signal == "SIGKILL"
    assert second.resumed_at is not None
    assert result.ledger.check() == []
