"""A job goes on with more workers once there is room for them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gridflow import LocalLauncher, NotEnoughSlots, TensorflowDistributor
from suite.waiting import LONGEST, patience

ROWS, BATCH, EPOCHS = 203, 8, 4


@pytest.mark.slow
@pytest.mark.parametrize("allocation", ["static", "dynamic"])
def test_a_job_that_begins_with_few_workers_grows_at_the_end_of_an_epoch(allocation, tmp_path):
    driver = Path(__file__).with_name("growing_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), allocation],
        env={**os.environ, "PYTHONPATH": str(driver.parents[1])},  # of the suite
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sizes"][-2:] == [[1], [2]]
    assert set(told["failures"]) == {None}
    assert told["workers"] == [2, 2]
    assert told["epochs"] == 6
    assert 0 < told["resumed_from"] < 6
    assert told["ledger"] == []
    assert told["apart"] < 1e-6
    if allocation == "dynamic":  # where Spark waits for executors that may come
        assert "1 of 3 workers have come within 60 seconds" in done.stdout
    assert "there is room for 2 workers" in done.stdout


class Small(LocalLauncher):
    """This machine, as if it had one slot when the job begins."""

    def for_job(self):
        return self

    def place(self, num_tasks, *args, **options):
        if num_tasks > 1:
            raise NotEnoughSlots("there is one slot", num_tasks, 1)
        return super().place(num_tasks, *args, **options)


def wait_for_room(ctx):
    """Wait until a job of one worker is asked to stop for more."""
    end = time.monotonic() + 60
    while ctx.num_workers == 1 and not ctx._runtime.agreement._asked and time.monotonic() < end:
        time.sleep(0.02)


def fit(ctx):
    import keras

    class Waits(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            wait_for_room(ctx)

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    in_order = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y", shuffle=False)
    next(iter(in_order))
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
    model.fit(rows, epochs=EPOCHS, verbose=0, callbacks=[*ctx.callbacks(), Waits()])
    return ctx.num_workers, int(model.optimizer.iterations.numpy())


def loop(ctx):
    import tensorflow as tf

    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    rows = ctx.dataset("train", batch_size=BATCH, features=["x"], label="y")
    kept = ctx.loop(model, rows, epoch=0)

    def steps():
        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x)[:, 0] - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            share = ctx.strategy.num_replicas_in_sync
            gradients = [each / share for each in gradients]
            pairs = zip(gradients, model.trainable_variables, strict=True)
            model.optimizer.apply_gradients(pairs)

        while kept.epoch < EPOCHS:
            for x, y in kept.batches(rows):
                ctx.strategy.run(step, args=(x, y))
                wait_for_room(ctx)
            kept.epoch += 1

    kept.run(steps)
    return ctx.num_workers, int(model.optimizer.iterations.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("function", [fit, loop])
def test_rows_are_divided_among_those_that_are_there_then(function):
    distributor = TensorflowDistributor(
        (1, 3), "multi_worker_mirrored", launcher=Small(), seed=1, logs="none", progress=False
    )
    data = {"x": np.ones((ROWS, 4), "float32"), "y": np.ones(ROWS, "float32")}
    handle = distributor.start(function, data={"train": data})
    handle.wait_until("training", patience())
    handle._run.slots_came(1, 3)
    result = handle.result(timeout=patience())
    first, second = result.attempts
    assert (first.failure, second.failure) == (None, None)
    assert (first.sizes, second.sizes) == (((0.0, 1),), ((0.0, 3),))
    epoch, step = second.resumed_from
    assert (epoch, step) == (1, 0)
    few, many = math.ceil(ROWS / BATCH), math.ceil(math.ceil(ROWS / 3) / BATCH)
    steps = epoch * few + (EPOCHS - epoch) * many
    assert list(result.values) == [(3, steps)] * 3
    assert result.ledger.check() == []
    records = [each for each in result.ledger.records if each.complete]
    for number in range(EPOCHS):
        fed = [each.rows_fed - each.rows_repeated for each in records if each.epoch == number]
        assert (sum(fed), len(fed)) == (ROWS, 1 if number < epoch else 3)
