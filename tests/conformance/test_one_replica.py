"""The table on gridflow's own strategy, which will replace TensorFlow's."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow._keras import group
from gridflow.testing import conformance

pytestmark = pytest.mark.slow
OPTIONS = {"in_full": True, "models": 1, "steps": True, "weights": True}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
def test_each_process_is_one_replica(flavour, tmp_path, monkeypatch):
    expected = conformance.run_plain(flavour, tmp_path, **OPTIONS)
    monkeypatch.setenv(group.VARIABLE, "1")
    found = conformance.run_column(
        "multi_worker_mirrored", flavour, expected, tmp_path / "shared", **OPTIONS
    )
    assert {cell: outcome for cell, outcome in found.items() if not outcome.passed} == {}
    assert len(found) > 20


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


def test_xla_compiles_steps_on_both_sides_of_the_exchange(monkeypatch):
    def run(workers):
        return TensorflowDistributor(
            workers, launcher=LocalLauncher(), logs="none", progress=False
        ).run(compiled)

    alone, alone_logs = run(1).value
    monkeypatch.setenv(group.VARIABLE, "1")
    for weights, logs in list(run(2).values):
        assert max(np.abs(a - b).max() for a, b in zip(weights, alone, strict=True)) < 2e-6
        for name, values in alone_logs.items():
            np.testing.assert_allclose(logs[name], values, atol=1e-5)
