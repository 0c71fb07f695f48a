"""Logs of a step: of all ranks where somebody looks at them, and nothing exchanged where nobody."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor

pytestmark = pytest.mark.slow
STEPS = 32
#: Two ranks whose rows differ, so that the means of their logs do, too.
X = np.random.default_rng(0).normal(size=(2 * 32 * STEPS, 8)).astype("float32")
X[: len(X) // 2] += 1
ROWS = {"train": {"x": X, "y": X[:, 0]}}


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


def learn(ctx):
    """Train in several ways; return each one's exchanges, last logs of a step, and history."""
    import keras
    from gridflow._collectives.host import HostGroup

    exchanges = [0]
    exchange = HostGroup._sum

    def counted(self, values):
        exchanges[0] += 1
        return exchange(self, values)

    HostGroup._sum = counted

    class Look(keras.callbacks.Callback):
        last = None

        def on_train_batch_end(self, batch, logs=None):
            self.last = dict(logs)

    class Own(keras.Model):
        def train_step(self, data):
            super().train_step(data)
            return {"mean": keras.ops.mean(data[0])}

    def model_of(kind, **options):
        with ctx.strategy.scope():
            inputs = keras.Input((8,))
            model = kind(inputs, keras.layers.Dense(1)(inputs))
            model.compile("adam", "mse", **options)
        return model

    data = ctx.dataset(batch_size=32, features="x", label="y", shuffle=False)
    model, own = model_of(keras.Model, metrics=["mae"]), model_of(Own)
    found = {}

    def fit(name, model, callbacks, **options):
        before = exchanges[0]
        history = model.fit(data, verbose=0, callbacks=callbacks, **options).history
        looks = [each.last for each in callbacks if isinstance(each, Look)]
        found[name] = exchanges[0] - before, looks, history

    fit("nobody", model, [])
    fit("somebody", model, [Look()])
    fit("nobody again", model, ctx.callbacks())
    fit("the chief", model, [Look()] if ctx.is_chief else [])
    fit("several steps at once", model_of(keras.Model, steps_per_execution=4), [])
    fit("own step, nobody", own, [])
    fit("own step, somebody", own, [Look()])
    batch = X[:4] + ctx.rank, X[:4, 0]
    found["train_on_batch"] = model.train_on_batch(*batch, return_dict=True)
    return found


def test_ranks_exchange_logs_only_if_one_of_them_looks():
    distributor = TensorflowDistributor(
        2, launcher=LocalLauncher(), seed=1, logs="none", progress=False
    )
    first, second = distributor.run(learn, data=ROWS).values
    for name in ("nobody", "nobody again", "several steps at once", "own step, nobody"):
        assert STEPS <= first[name][0] < STEPS + 20
    # Who looks at the logs of a step may also stop after it: ranks tell each other.
    for name in ("somebody", "the chief", "own step, somebody"):
        assert 3 * STEPS <= first[name][0] < 3 * STEPS + 20
    for name in first.keys() - {"train_on_batch"}:
        assert first[name][0] == second[name][0]
        assert first[name][2] == second[name][2]
    # A step's logs are of both ranks, and those of the last step are the epoch's.
    (last,), history = first["somebody"][1:]
    assert second["somebody"][1] == [last]
    assert last == pytest.approx({each: values[-1] for each, values in history.items()}, rel=1e-5)
    (last,), history = first["the chief"][1:]
    assert last == pytest.approx({each: values[-1] for each, values in history.items()}, rel=1e-5)
    # What a step of one's own returns is averaged at the end, if it wasn't in each step.
    mean = X.reshape(2, STEPS, -1)[:, -1].mean()
    for name in ("own step, nobody", "own step, somebody"):
        assert first[name][2]["mean"] == pytest.approx([mean], rel=1e-5)
    assert first["train_on_batch"] == second["train_on_batch"]
