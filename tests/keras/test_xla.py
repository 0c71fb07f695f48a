"""Steps that XLA compiles, as Keras 3 does by itself on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor

pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
X = RNG.normal(size=(256, 8)).astype("float32")
ROWS = {"train": {"x": X, "y": X[:, 0]}}


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


def learn(ctx, flavour):
    """Train with and without XLA; return the losses and weights of each."""
    import importlib

    keras = importlib.import_module(flavour)

    def trained(jit_compile):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        with ctx.strategy.scope():
            model = keras.Sequential([keras.layers.Input((8,)), *layers])
            optimizer = keras.optimizers.Adam(0.01)
            model.compile(optimizer, "mse", metrics=["mae"], jit_compile=jit_compile)
        rows = ctx.dataset(batch_size=64, features="x", label="y", shuffle=False)
        history = model.fit(rows, epochs=2, verbose=0, callbacks=ctx.callbacks()).history
        return [*history["loss"], *model.evaluate(rows, verbose=0)], model.get_weights()

    return trained(jit_compile=True), trained(jit_compile=False)


def compiled(ctx):
    import keras

    keras.utils.set_random_seed(1)
    with ctx.strategy.scope():
        hidden = keras.layers.Dense(8, activation="gelu")
        model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01, clipnorm=0.3)
        model.compile(optimizer, "mse", metrics=["mae"], jit_compile=True)
    x = np.random.default_rng(0).normal(size=(67, 4)).astype("float32")
    logs = model.fit(x, x[:, :1] ** 2, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return model.get_weights(), logs


def test_xla_compiles_steps_on_both_sides_of_the_exchange():
    def run(workers):
        return TensorflowDistributor(
            workers, launcher=LocalLauncher(), logs="none", progress=False
        ).run(compiled)

    alone, alone_logs = run(1).value
    for weights, logs in list(run(2).values):
        assert max(np.abs(a - b).max() for a, b in zip(weights, alone, strict=True)) < 2e-6
        for name, values in alone_logs.items():
            np.testing.assert_allclose(logs[name], values, atol=1e-5)


@pytest.mark.parametrize("strategy", ["none", "multi_worker_mirrored"])
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_a_single_worker_trains_with_xla_as_without(flavour, strategy):
    distributor = TensorflowDistributor(
        1, strategy, launcher=LocalLauncher(), logs="none", progress=False
    )
    (losses, weights), (other_losses, other_weights) = distributor.run(
        learn, flavour, data=ROWS
    ).value
    np.testing.assert_allclose(losses, other_losses, rtol=1e-4)
    for mine, other in zip(weights, other_weights, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
