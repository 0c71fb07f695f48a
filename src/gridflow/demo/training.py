"""The Keras model of the flights, and the function that trains it on every worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.demo.flights import LABEL, NUMBERS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow import TrainingContext

    Vocabularies = Mapping[str, Sequence[str]]
    Statistics = Mapping[str, tuple[float, float]]

_EPOCHS: Final = 8
_BATCH_SIZE: Final = 512


def build_model(keras: Any, vocabularies: Vocabularies, statistics: Statistics) -> Any:
    """Return a model that predicts the arrival delay from numbers and embedded names.

    Parameters
    ----------
    keras : module
    vocabularies : dict
        The values of each text column.
    statistics : dict
        Mean and standard deviation of each number.
    """
    inputs = {name: keras.Input((), dtype="string", name=name) for name in TEXTS}
    inputs["numbers"] = keras.Input((len(NUMBERS),), name="numbers")
    means = [statistics[name][0] for name in NUMBERS]
    variances = [statistics[name][1] ** 2 for name in NUMBERS]
    parts = [keras.layers.Normalization(mean=means, variance=variances)(inputs["numbers"])]
    for name in TEXTS:
        index = keras.layers.StringLookup(vocabulary=vocabularies[name])(inputs[name])
        parts.append(keras.layers.Embedding(len(vocabularies[name]) + 1, 8)(index))
    hidden = keras.layers.Concatenate()(parts)
    for units in (128, 64):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    delay = keras.layers.Dense(1, name="delay")(hidden)
    return keras.Model(inputs, delay)


def train(
    ctx: TrainingContext,
    vocabularies: Vocabularies,
    statistics: Statistics,
    learning_rate: float = 2e-3,
) -> Any:
    """Train on this worker's flights, together with the other workers."""
    import keras

    columns: dict[str, Any] = {"batch_size": _BATCH_SIZE, "label": LABEL}
    columns["features"] = {"numbers": NUMBERS, **{name: name for name in TEXTS}}
    rows = ctx.dataset("train", **columns)
    steps = _EPOCHS * ctx.steps_per_epoch("train", batch_size=_BATCH_SIZE)
    with ctx.strategy.scope():
        model = build_model(keras, vocabularies, statistics)
        schedule = keras.optimizers.schedules.CosineDecay(learning_rate, steps)
        model.compile(keras.optimizers.Adam(schedule), "mse", metrics=["mae"])
    model.fit(
        rows,
        validation_data=ctx.dataset("validation", **columns),
        epochs=_EPOCHS,
        verbose=0,
        callbacks=ctx.callbacks(),
    )
    return model
