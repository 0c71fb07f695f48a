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
