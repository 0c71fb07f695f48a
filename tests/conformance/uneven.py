"""Cases of the conformance table that evaluate on rows that don't divide into equal batches.

Evaluation and validation must count each row once, with 66 or 67 rows, with a single row, and when
one rank has far fewer rows than there are steps. Checked for the loss and for metrics, including
weighted ones and some that aren't a mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from conformance.cases import BATCH, EPOCHS, CaseResult, Lab

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Rows in each evaluated dataset. Most of the second half of the last one are dropped.
SIZES: Final = {"rows66": 66, "rows67": 67, "one": 1, "uneven": 70}
_KEPT: Final = 38  # rows left of "uneven": 35 on the first of two ranks, 3 on the second
CASES: Final = (*(f"evaluate {name}" for name in SIZES), "validation rows67")


def _rows(name: str) -> dict[str, np.ndarray]:
    rows = SIZES[name]
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, 4)).astype("float32")
    y = (x[:, :1] + rng.normal(size=(rows, 1)) > 0).astype("float32")
    return {"x": x, "y": y, "weight": rng.uniform(0.5, 2, rows).astype("float32")}


def datasets() -> dict[str, Any]:
    """Return the datasets of `SIZES`; feed them with ``nulls="drop"``."""
    found: dict[str, Any] = {name: _rows(name) for name in SIZES}
    uneven = found["uneven"]
    first, last = SIZES["uneven"] // 2, _KEPT - SIZES["uneven"] // 2
    weights = uneven["weight"].tolist()
    missing = len(weights) - _KEPT
    weights[first : first + missing] = [None] * missing
    if len(weights) - first - missing != last:
        raise AssertionError("the uneven rows don't match SIZES and _KEPT")
    columns = {
        name: pa.FixedSizeListArray.from_arrays(uneven[name].ravel(), uneven[name].shape[1])
        for name in ("x", "y")
    }
    found["uneven"] = pa.table({**columns, "weight": pa.array(weights, pa.float32())})
    return found


def _kept(name: str) -> dict[str, np.ndarray]:
    rows = _rows(name)
    if name != "uneven":
        return rows
    first, last = SIZES[name] // 2, _KEPT - SIZES[name] // 2
    places = [*range(first), *range(SIZES[name] - last, SIZES[name])]
    return {column: values[places] for column, values in rows.items()}


def _model(lab: Lab) -> Any:
    keras = lab.keras
    metrics = keras.metrics
    keras.utils.set_random_seed(1)
    with lab.strategy.scope():
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")]
        model = keras.Sequential(layers)
        model.build((None, 4))
        model.compile(
            keras.optimizers.SGD(0.05),
            "binary_crossentropy",
            metrics=[metrics.AUC(name="auc"), metrics.TruePositives(name="positives")],
            weighted_metrics=[metrics.MeanAbsoluteError(name="weighted")],
        )
    return model


def _found(logs: Mapping[str, Any]) -> CaseResult:
    return CaseResult(losses=[float(logs[name]) for name in sorted(logs)])


def _validated(history: Any) -> CaseResult:
    values = [history.history[name] for name in sorted(history.history) if name.startswith("val_")]
    return CaseResult(losses=[float(value) for each in values for value in each])


def plain_results(lab: Lab) -> dict[str, CaseResult]:
    """Compute the expected values in one process, from arrays."""
    options = {"batch_size": BATCH, "verbose": 0}
    model = _model(lab)
    found = {}
    for name in SIZES:
        rows = _kept(name)
        logs = model.evaluate(
            rows["x"], rows["y"], sample_weight=rows["weight"], return_dict=True, **options
        )
        found[f"evaluate {name}"] = _found(logs)
    rows, trained = _kept("rows67"), _even()
    history = model.fit(
        trained["x"],
        trained["y"],
        validation_data=(rows["x"], rows["y"], rows["weight"]),
        epochs=EPOCHS,
        shuffle=False,
        **options,
    )
    return {**found, "validation rows67": _validated(history)}


def _even() -> dict[str, np.ndarray]:
    rows = _rows("rows66")
    return {name: values[: 4 * BATCH] for name, values in rows.items()}


def results(ctx: Any, lab: Lab) -> dict[str, CaseResult]:
    """Compute the cases on this rank."""

    def dataset(name: str) -> Any:
        size = BATCH // ctx.num_workers
        return ctx.dataset(
            name, batch_size=size, features=["x"], label=["y"], sample_weight="weight"
        )

    model = _model(lab)
    found = {
        f"evaluate {name}": _found(model.evaluate(dataset(name), verbose=0, return_dict=True))
        for name in SIZES
    }
    rows = _even()
    if not lab.is_tensorflow:  # other backends take arrays as this rank's own rows
        rows = _share(rows, ctx)
    history = model.fit(
        rows["x"],
        rows["y"],
        batch_size=BATCH if lab.is_tensorflow else BATCH // ctx.num_workers,
        validation_data=dataset("rows67"),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
    )
    return {**found, "validation rows67": _validated(history)}


def _share(rows: dict[str, np.ndarray], ctx: Any) -> dict[str, np.ndarray]:
    """Return this rank's part of each global batch."""
    steps = len(rows["x"]) // BATCH
    return {
        name: values.reshape(steps, ctx.num_workers, -1, *values.shape[1:])[:, ctx.rank].reshape(
            -1, *values.shape[1:]
        )
        for name, values in rows.items()
    }
