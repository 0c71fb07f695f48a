"""Prediction inside Spark's Python workers: load once, feed columns, return arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gridflow.agent.folder import temporary_folder
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

#: A Python worker lives on from task to task; so does the last model that it loaded.
_loaded: dict[str, Any] = {}


def load(key: str, model: bytes, options: bytes, header: Mapping[str, Any]) -> Any:
    """Return the model of a ``.keras`` file's bytes, read with pickled options."""
    if key not in _loaded:
        import cloudpickle

        from gridflow.keras import results

        _loaded.clear()
        with temporary_folder("gridflow-model-") as folder:  # goes even if Spark kills the worker
            (folder / header["files"][0]).write_bytes(model)
            _loaded[key] = results.unpack(header, folder, cloudpickle.loads(options))
    return _loaded[key]


def inputs(
    columns: Sequence[pd.Series], names: Sequence[str], shapes: Sequence[Sequence[int | None]]
) -> dict[str, np.ndarray] | np.ndarray:
    """Return columns as what the model's inputs take.

    Raises
    ------
    InvalidArgument
        Their number doesn't fit the model.
    """
    if len(names) == 1 and (len(columns) > 1 or _is_one_number(columns[0], shapes[0])):
        return np.stack([column.to_numpy(dtype="float32") for column in columns], axis=1)
    if len(columns) != len(names):
        raise InvalidArgument(
            f"the model has {len(names)} inputs ({', '.join(names)}), got {len(columns)} columns."
        )
    arrays = [_tensor(*each) for each in zip(columns, shapes, names, strict=True)]
    return arrays[0] if len(names) == 1 else dict(zip(names, arrays, strict=True))


def predict(
    model: Any,
    given: dict[str, np.ndarray] | np.ndarray,
    output: str,
    outputs: Sequence[str],
    batch_size: int,
) -> np.ndarray:
    """Return the predictions of one of the model's outputs."""
    rows = len(next(iter(given.values())) if isinstance(given, dict) else given)
    parts = []
    for first in range(0, rows, batch_size):
        part = slice(first, first + batch_size)
        piece = {k: v[part] for k, v in given.items()} if isinstance(given, dict) else given[part]
        predicted = model.predict_on_batch(piece)
        if isinstance(predicted, dict):
            predicted = predicted[output]
        elif isinstance(predicted, list | tuple):
            predicted = predicted[outputs.index(output)]
        parts.append(np.asarray(predicted))
    return np.concatenate(parts)


def _is_one_number(column: pd.Series, shape: Sequence[int | None]) -> bool:
    """Return whether a column of plain numbers is to fill an input of shape (rows, 1)."""
    return len(shape) == 2 and shape[1] == 1 and column.dtype != object  # noqa: PLR2004


def _tensor(column: pd.Series, shape: Sequence[int | None], name: str) -> np.ndarray:
    values = column.to_numpy()
    if values.dtype == object and column.isna().any():
        raise InvalidArgument(
            f"the column for the model's input {name!r} holds nulls, which only plain numbers may "
            "(they become NaN). Fill them before, df.fillna({'column': value}), with what stood "
            "for them in training, or drop their rows."
        )
    if values.dtype == object and len(values) and not isinstance(values[0], str | bytes):
        values = np.stack([np.asarray(value) for value in values])
    if None not in shape[1:] and math.prod(values.shape[1:]) == math.prod(
        size for size in shape[1:] if size is not None
    ):
        values = values.reshape(len(values), *[size for size in shape[1:] if size is not None])
    return values
