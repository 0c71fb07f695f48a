"""Models that take batches of one size: stateful layers."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks", "by_value")]


def train(ctx, flavour):
    """Return what each use of a stateful model says, None where it goes well."""
    import importlib

    keras = importlib.import_module(flavour)
    with ctx.strategy.scope():
        layers = [
            keras.layers.Input(batch_shape=(4, 3, 1)),
            # tf_keras itself refuses stateful ones under a strategy.
            keras.layers.LSTM(2, stateful=flavour == "keras"),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
    found = []

    def attempt(use, name, batch_size=4, **options):
        rows = ctx.dataset(name, batch_size=batch_size, features="x", label="y", **options)
        try:
            use(rows)
        except ValueError as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append(None)

    steps = {"steps_per_epoch": 2} if flavour == "tf_keras" else {}
    attempt(lambda rows: model.fit(rows, verbose=0, **steps), "uneven")
    attempt(lambda rows: model.fit(rows, verbose=0, **steps), "uneven", batch_size=2, tail="drop")
    attempt(lambda rows: model.fit(rows, verbose=0, **steps), "uneven", tail="repeat")
    attempt(lambda rows: model.fit(rows, verbose=0, **steps), "even")
    attempt(lambda rows: model.evaluate(rows, verbose=0), "uneven")
    attempt(lambda rows: model.evaluate(rows, verbose=0), "even")
    return found


@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_a_stateful_model_is_fed_full_batches_or_refuses_others(flavour):
    def rows(count):
        x = np.random.default_rng(count).random((count, 3, 1), np.float32)
        return {"x": x, "y": x.sum(axis=(1, 2))}

    distributor = TensorflowDistributor(2, launcher=LocalLauncher(), logs="none", progress=False)
    result = distributor.run(train, flavour, data={"uneven": rows(13), "even": rows(16)})
    for spread, small, repeated, even, tested, evenly_tested in result.values:
        assert spread.startswith("InvalidArgument: the model takes batches of exactly 4 rows")
        assert "this dataset has batches of several sizes. tail='spread'" in spread
        assert "has batches of 2 rows" in small
        assert (repeated, even, evenly_tested) == (None, None, None)
        assert "Outside training each row counts once" in tested
