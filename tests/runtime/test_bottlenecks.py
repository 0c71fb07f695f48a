"""A job that is slow says why."""

from __future__ import annotations

import re

import numpy as np
import pytest
from slow_rows import Pace, SlowLauncher

from gridflow import LocalLauncher, TensorflowDistributor
from suite.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]

WORDS = {
    "callbacks": r"is in callbacks \d+% of the time: those of each batch",
    "rows": r"waits for rows \d+% of the time.*: what the program does with them",
    "slow": r"worker:1 computes \d+% of the time, and worker:0 waits for it \d+%: its steps take",
    "checkpoints": r"worker:0 makes checkpoints \d+% of the time, and worker:1 waits for it",
    "fixed": "a step of 2 rows takes",
    "late": r"waited \d+ s for its rows .*: computing them took \d+% of the time in which they",
    "early": r"waits for rows \d+% of the time.*: they are still to come; computing them took",
}
#: Where rows are late, each rank gets a batch at a time.
ROWS = 5000


def trains(ctx, cause, started):
    """Train slowly, for a reason."""
    import pathlib
    import time

    import tensorflow as tf

    import keras

    def slowly(value):
        time.sleep(0.05)
        return value

    def slow(tensor):
        return tf.ensure_shape(tf.numpy_function(slowly, [tensor], tensor.dtype), tensor.shape)

    size = {"fixed": 2, "late": ROWS, "early": ROWS}.get(cause, 32)
    pathlib.Path(started).touch()
    start = "early" if cause == "early" else "complete"
    rows = ctx.dataset("rows", batch_size=size, features="x", label="y", start=start)
    if cause == "rows":
        rows = rows.map(lambda x, y: (x, slow(y)))
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if cause == "slow" and ctx.rank == 1:
        loss = model.compute_loss
        model.compute_loss = lambda *args, **kwargs: (
            slow(found := loss(*args, **kwargs)) * 0 + found
        )
    callbacks = ctx.callbacks(tensorboard=False)
    if cause in {"callbacks", "late"}:
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: slowly(0))
        )
    # Nothing is said of a fit of less than a second.
    epochs = {"early": 1, "late": 1, "checkpoints": 15}.get(cause, 3)
    model.fit(rows, epochs=epochs, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("cause", WORDS)
def test_the_cause_of_a_slow_job_is_named(cause, tmp_path):
    is_paced = cause in {"late", "early"}
    count = 40 * ROWS if is_paced else 1280
    rows = np.random.default_rng(0).normal(size=(count, 8)).astype("float32")
    started = str(tmp_path / "started")
    pace = Pace(pause=0.4, rows=ROWS, starts_with=started)
    distributor = TensorflowDistributor(
        1 if cause == "fixed" else 2,
        launcher=SlowLauncher(pace, pace) if is_paced else LocalLauncher(),
        logs="none",
        progress=False,
        checkpoint_every=1 if cause == "checkpoints" else None,
    )
    handle = distributor.start(trains, cause, started, data={"rows": {"x": rows, "y": rows[:, 0]}})
    handle.result(timeout=patience())
    assert re.search(WORDS[cause], handle.report.bottleneck)
