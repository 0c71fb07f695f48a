"""The models and rows of ``steps.py``, for Keras and for torch."""

from __future__ import annotations

import itertools

import numpy as np

#: Rows of a step and worker, and steps of an epoch.
CASES = {
    "784-128-10": (64, 200),
    "1 M parameters": (64, 40),
    "10 M parameters": (64, 10),
    "convolutions, 64x64": (32, 8),
}
_HIDDEN = {"784-128-10": [128], "1 M parameters": [900, 320], "10 M parameters": [2800, 2700]}


def is_image(case):
    """Return whether a case's rows are images."""
    return case.startswith("convolutions")


def rows(case, workers):
    """Return the rows of an epoch of all workers, and their classes."""
    batch, steps = CASES[case]
    count = batch * steps * workers
    rng = np.random.default_rng(0)
    shape = (count, 64, 64, 3) if is_image(case) else (count, 784)
    return rng.normal(size=shape).astype("float32"), rng.integers(0, 10, count)


def keras_model(case, keras):
    """Return the compiled model, of Keras 3 or tf_keras."""
    layers = keras.layers
    if is_image(case):
        found = [
            layers.Input((64, 64, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
        ]
    else:
        found = [layers.Input((784,))]
        found += [layers.Dense(units, activation="relu") for units in _HIDDEN[case]]
    model = keras.Sequential([*found, layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def torch_model(case):
    """Return the same for torch; it ends in logits, as is usual there."""
    from torch import nn

    if is_image(case):
        return nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    widths = [784, *_HIDDEN[case], 10]
    found = []
    for before, after in itertools.pairwise(widths):
        found += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*found[:-1])
