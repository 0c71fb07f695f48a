"""Three ranks with uneven batches, and some without rows, train as one process does."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import run_job

rng = np.random.default_rng(0)
X = rng.normal(size=(65, 6)).astype("float32")
Y = (X[:, :1] ** 2).astype("float32")
WORDS = rng.integers(0, 9, (65, 7))
WEIGHTS = rng.random(65).astype("float32")
FIT = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}


def numbers(keras):
    layers = keras.layers
    hidden = [layers.Dense(8, "gelu"), layers.BatchNormalization(synchronized=True)]
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])


def texts(keras):
    layers = keras.layers
    hidden = [layers.Embedding(9, 4, mask_zero=True), layers.LSTM(5, return_sequences=True)]
    return keras.Sequential([keras.Input((7,)), *hidden, layers.Dense(1)])


def halves(keras):
    hidden = keras.layers.Dense(8, "gelu", dtype="bfloat16")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(1, dtype="bfloat16")])


def quantized(keras):
    hidden = keras.layers.Dense(8, "gelu")
    model = keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(1)])
    hidden.quantize("int8")
    hidden.enable_lora(2)
    assert "int8" in {each.dtype for each in model.weights}
    return model


def trained(ctx):
    """Return what each case learns, logs and predicts."""
    import keras

    optimizers = keras.optimizers
    cases = {
        "clipped": (numbers, optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5), X, Y, {}),
        "accumulated": (numbers, optimizers.Adam(0.01, gradient_accumulation_steps=2), X, Y, {}),
        "averaged": (
            numbers,
            optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
            X,
            Y,
            {"sample_weight": WEIGHTS},
        ),
        "masked": (texts, optimizers.Adam(0.01), WORDS, np.repeat(Y[:, None], 7, 1), {}),
        "variables of bfloat16": (halves, optimizers.SGD(0.1), X, Y, {}),
        "variables of int8": (quantized, optimizers.Adam(0.01), X, Y, {}),
        # The last batch has a single row.
        "ranks without rows": (numbers, optimizers.Lamb(0.01), X[:17], Y[:17], {}),
    }
    found = {}
    for name, (make, optimizer, x, y, more) in cases.items():
        keras.utils.set_random_seed(1)
        with ctx.strategy.scope():
            model = make(keras)
            model.compile(type(optimizer).from_config(optimizer.get_config()), "mse")
        losses = model.fit(x, y, **FIT, **more).history["loss"]
        losses.append(model.evaluate(x, y, batch_size=16, verbose=0))
        weights = [weight.astype("float64") for weight in model.get_weights()]
        found[name] = weights, losses, model.predict(x, batch_size=16, verbose=0)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("by_value", "no_leaks")
def test_three_ranks_train_as_one_process_does():
    (alone,), _ = run_job(trained)
    ranks, _ = run_job(trained, 3, "multi_worker_mirrored")
    for name, (weights, losses, predicted) in alone.items():
        near = {"atol": 0.06 if name.endswith("bfloat16") else 2e-6, "err_msg": name}
        for found in ranks:
            for have, want, first in zip(found[name][0], weights, ranks[0][name][0], strict=True):
                np.testing.assert_allclose(have, want, **near)
                np.testing.assert_array_equal(have, first, err_msg=name)
            np.testing.assert_allclose(found[name][1], losses, **near)
            np.testing.assert_allclose(found[name][2], predicted, **near)
