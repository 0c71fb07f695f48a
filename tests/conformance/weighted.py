"""Cases of the conformance table in which rows, replicas or steps have different weights.

Losses divided by masks or weights that differ between replicas; batches that don't divide evenly
among replicas; gradients that overflow on only one replica.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from conformance.cases import BATCH, EPOCHS, ROWS, STEPS, CaseResult, trained

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.cases import Lab

CASES: Final = (
    "masked loss",
    "mean_with_sample_weight",
    "own batches of 15",
    "sum over own batches of 15",
    "overflow of one replica",
)
#: JAX replicas need parts of equal size; tf_keras doesn't have this reduction.
_LACKS: Final = {
    "tf_keras": ("mean_with_sample_weight",),
    "jax": ("own batches of 15", "sum over own batches of 15"),
}
_ODD: Final = 15  # batch size that doesn't divide evenly between two replicas
_LENGTH: Final = 5  # tokens per sequence
_FIT: Final = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}


def cases_of(flavour: str) -> tuple[str, ...]:
    """Return the `CASES` that a flavour of Keras, or Keras 3 on a backend, supports."""
    return tuple(case for case in CASES if case not in _LACKS.get(flavour, ()))


@functools.cache
def _natural_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    first = (
        np.arange(ROWS) % BATCH < BATCH // 2
    )  # rows that the first of two replicas gets of each batch
    lengths = np.where(first, rng.integers(1, 3, ROWS), rng.integers(3, _LENGTH + 1, ROWS))
    tokens = rng.integers(1, 9, (ROWS, _LENGTH)) * (np.arange(_LENGTH) < lengths[:, None])
    # Small whole numbers, exact in float16 arithmetic, and an outlier in each batch.
    whole = rng.integers(-1, 2, (ROWS, 4))
    outlier = np.where(np.arange(ROWS) % BATCH == BATCH // 2, 200, rng.integers(-3, 4, ROWS))
    return {
        "tokens": tokens.astype("int32"),
        "targets": rng.normal(size=(ROWS, _LENGTH, 1)).astype("float32"),
        "x": rng.normal(size=(ROWS, 4)).astype("float32"),
        "y": rng.normal(size=(ROWS, 1)).astype("float32"),
        "weight": np.where(first, 0.2, 3.0).astype("float32"),
        "whole": whole.astype("float32"),
        "outlier": outlier[:, None].astype("float32"),
    }


def datasets(num_workers: int) -> dict[str, Any]:
    """Return the rows, ordered so that `num_workers` contiguous shares give the same batches."""
    places = np.arange(ROWS).reshape(STEPS, num_workers, -1).transpose(1, 0, 2).reshape(-1)
    return {"weighted": {name: values[places] for name, values in _natural_rows().items()}}


def plain_results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the expected values in one process, from arrays."""
    rows = _natural_rows()

    def fit(model: Any, x: str, y: str, weight: str | None = None) -> Any:
        weights = None if weight is None else rows[weight]
        return model.fit(rows[x], rows[y], sample_weight=weights, batch_size=BATCH, **_FIT)

    def fit_own(model: Any, x: str, y: str) -> tuple[Any, list[np.ndarray]]:
        both = _owned(lab, rows[x], rows[y])
        tested = {"validation_data": both} if lab.is_tensorflow else {}
        history = model.fit(*both, batch_size=_ODD, **tested, **_FIT)
        if not lab.is_tensorflow:
            return history, []
        return history, [model.predict(rows[x], batch_size=_ODD, verbose=0)]

    return _results(lab, fit, fit_own)


def results(ctx: Any, lab: Lab) -> dict[str, CaseResult]:
    """Compute the cases on this rank."""
    rows = _natural_rows()

    def fit(model: Any, x: str, y: str, weight: str | None = None) -> Any:
        size = BATCH // ctx.num_workers
        data = ctx.dataset(
            "weighted", batch_size=size, features=[x], label=[y], sample_weight=weight
        )
        return model.fit(data, epochs=EPOCHS, verbose=0)

    def fit_own(model: Any, x: str, y: str) -> tuple[Any, list[np.ndarray]]:
        if not lab.is_tensorflow:
            return _fit_parts(ctx, model, *_owned(lab, rows[x], rows[y])), []
        import tensorflow as tf

        def batches(*columns: str) -> Any:
            return tf.data.Dataset.from_tensor_slices(
                tuple(rows[name] for name in columns) if len(columns) > 1 else rows[columns[0]]
            ).batch(_ODD)

        history = model.fit(batches(x, y), validation_data=batches(x, y), epochs=EPOCHS, verbose=0)
        return history, [model.predict(batches(x), verbose=0)]

    return _results(lab, fit, fit_own)


def _owned(lab: Lab, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the rows for custom batches; the last batch is partial if a rank may go without."""
    most = ROWS if lab.is_tensorflow else ROWS // _ODD * _ODD
    return tuple(values[:most] for values in columns)


def _fit_parts(ctx: Any, model: Any, x: np.ndarray, y: np.ndarray) -> Any:
    """Fit on arrays that hold only this rank's part of each batch."""
    mine = np.array_split(np.arange(_ODD), ctx.num_workers)[ctx.rank]
    places = [start + row for start in range(0, len(x), _ODD) for row in mine]
    return model.fit(x[places], y[places], batch_size=len(mine), **_FIT)


def _results(
    lab: Lab, fit: Callable[..., Any], fit_own: Callable[..., tuple[Any, list[np.ndarray]]]
) -> dict[str, CaseResult]:
    found = {}
    losses = lab.keras.losses
    for case in cases_of(lab.flavour):
        more: list[np.ndarray] = []
        match case:
            case "masked loss":
                model = _of_sequences(lab)
                history = fit(model, "tokens", "targets")
            case "mean_with_sample_weight":
                loss = losses.MeanSquaredError(reduction=case)
                model = lab.model("sgd momentum", loss=loss, metrics=None)
                history = fit(model, "x", "y", "weight")
            case "own batches of 15":
                model = _of_sequences(lab)
                history, more = fit_own(model, "tokens", "targets")
            case "sum over own batches of 15":
                with lab.strategy.scope():
                    slow = lab.keras.optimizers.SGD(0.005)
                model = lab.model("", loss=losses.MeanSquaredError(reduction="sum"), optimizer=slow)
                history, more = fit_own(model, "x", "y")
            case _:
                model = _of_halves(lab)
                history = fit(model, "whole", "outlier")
                is_old = lab.flavour == "tf_keras"
                scale = getattr(model.optimizer, "loss_scale" if is_old else "dynamic_scale")
                more = [np.array([float(np.array(scale))])]
        result = trained(model, history)
        found[case] = CaseResult([*result.values, *more], result.losses)
    return found


def _of_sequences(lab: Lab) -> Any:
    """Make a model with a masked loss."""
    keras = lab.keras
    keras.utils.set_random_seed(1)
    with lab.strategy.scope():
        tokens = keras.layers.Input((_LENGTH,), dtype="int32")
        embedded = keras.layers.Embedding(9, 4, mask_zero=True)(tokens)
        answers = keras.layers.Dense(1, kernel_regularizer="l2")(embedded)
        model = keras.Model(tokens, answers)
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def _of_halves(lab: Lab) -> Any:
    """Make a float16 model whose gradients overflow in all steps but the last."""
    keras = lab.keras
    policy = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with lab.strategy.scope():
            x = keras.layers.Input((4,))
            halves = keras.layers.Dense(1, kernel_initializer="zeros")(x)
            model = keras.Model(x, keras.layers.Activation("linear", dtype="float32")(halves))
            scaled = keras.mixed_precision.LossScaleOptimizer(
                keras.optimizers.SGD(0.125), initial_scale=2.0**18
            )
            model.compile(scaled, "mse")
    finally:
        keras.mixed_precision.set_global_policy(policy)
    return model
