"""Reshapes rows of columns to the shapes of a model's inputs and outputs.

A column is flat or nested in any way, while a model takes images and sequences. If the number of
elements matches, a row is reshaped in row-major order. Several array columns become the last axis
(two columns of 5 steps for an input of (5, 2)), or the first. Doesn't import Spark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from gridflow.ml.estimator.columns import Place

#: Shape of a row; None for a variable size.
Shape = tuple[int | None, ...]
#: Maximum columns named in an error.
_SHOWN: Final = 4


@dataclass(frozen=True)
class Fit:
    """How the columns of one input or output become its tensor.

    `shape` (tuple of int or None): Of a row.
    `apart`: Whether its columns arrive as separate tensors.
    """

    what: str
    name: str
    shape: Shape
    place: Place
    apart: bool

    @classmethod
    def of(cls, what: str, name: str, tensor: Any, place: Place, lists: Collection[str]) -> Fit:
        """Return how columns map to a symbolic tensor of a model.

        `tensor`: The model's tensor.
        `lists` (collection of str): Columns that hold arrays or vectors.
        """
        shape = tuple(None if size is None else int(size) for size in tensor.shape[1:])
        apart = is_apart(shape, place, lists)
        if apart:
            axis_of(what, name, shape, place)
        return cls(what, name, shape, place, apart)

    def apply(self, found: Any) -> Any:
        """Return a batch of the columns in the shape of the input or output.

        `found` (array, tensor, or sequence of them): The values of the columns; of each if they are
            separate.
        Raises `SchemaError`: The numbers of elements differ.
        """
        if not self.apart:
            return self._reshaped(found, self._wanted(found)) if self.shape[1:] else found
        axis = axis_of(self.what, self.name, self.shape, self.place)
        part = self.shape[:-1] if axis else self.shape[1:]
        library = _library(found[0])
        parts = [
            library.reshape(_float(each), (_rows(each), *part))
            if _size(tuple(each.shape[1:])) == _size(part)
            else self._refuse(each, part)
            for each in found
        ]
        return library.stack(parts, axis=-1 if axis else 1)

    def _wanted(self, found: Any) -> Shape:
        """Return the target shape of rows."""
        given = tuple(found.shape[1:])
        if self.what == "output" and _size(given) == _size(self.shape[:-1]) != _size(self.shape):
            return self.shape[:-1]  # classes as numbers
        return self.shape

    def _reshaped(self, found: Any, wanted: Shape) -> Any:
        given = tuple(found.shape[1:])
        sizes = _size(given), _size(wanted)
        if not _is_dense(found) or None in sizes or given == wanted:
            return found
        if sizes[0] == sizes[1]:
            return _library(found).reshape(found, (_rows(found), *wanted))
        # The loss decides what it accepts as labels.
        return found if self.what == "output" else self._refuse(found, wanted)

    def _refuse(self, found: Any, wanted: Shape) -> Any:
        given = tuple(found.shape[1:])
        raise SchemaError(
            f"the model's {self.what} {self.name!r} takes rows of the shape {self.shape}, and "
            f"{_named(self.place)} holds rows of the shape {given}: {_size(given)} elements, where "
            f"{_size(wanted)} are needed{' of each column' if self.apart else ''}. Give columns "
            "with as many, or a model whose Input has the shape of the rows."
        )


def refuse_bytes(
    name: str, dtype: str, shape: Shape, place: Place, kinds: Mapping[str, str]
) -> None:
    """Refuse columns of bytes or text for an input that takes numbers.

    `name`, `dtype`, `shape`: Of the input.
    `kinds` (mapping of str to str): The types of the columns that hold bytes or text.
    Raises `SchemaError`: Names the column, and what decodes it.
    """
    for column in [place] if isinstance(place, str) else place:
        if column in kinds and dtype != "string":
            sizes = ", ".join(map(str, shape[:2]))
            advice = (
                f"Decode it with map=: gridflow.data.image_decoder({sizes or 'height, width'}) for "
                f"images, gridflow.data.array_decoder({shape}) for arrays of np.save or tobytes."
                if kinds[column] == "binary"
                else "Make numbers of it before, for example with StringIndexer, or with map=."
            )
            raise SchemaError(
                f"featuresCol: column {column!r} is of type {kinds[column]}, and the model's input "
                f"{name!r} takes {dtype} rows of the shape {shape}. {advice}"
            )


def is_apart(shape: Shape, place: Place, lists: Collection[str]) -> bool:
    """Return whether the arrangement of several columns depends on an input's shape."""
    return not isinstance(place, str) and bool(shape[1:]) and any(name in lists for name in place)


def axis_of(what: str, name: str, shape: Shape, place: Place) -> int:
    """Return the axis along which array columns are stacked: 1 the last, 0 the first.

    Raises `SchemaError`: Neither axis has the number of columns.
    """
    if None not in shape and len(place) in (shape[0], shape[-1]):
        return int(shape[-1] == len(place))
    raise SchemaError(
        f"the model's {what} {name!r} takes rows of the shape {shape}, and {_named(place)} are "
        f"{len(place)} arrays: neither its first nor its last axis has the size {len(place)}. "
        "Combine them into one column, in row-major order (pyspark.sql.functions.concat)."
    )


def fitting(features: Mapping[str, Fit], labels: Mapping[str, Fit]) -> Callable[..., Any] | None:
    """Return the function to apply to batches, or None if no tensor changes.

    `features`, `labels`: By input and output name; empty if the model declares none.
    """
    sides = [dict(features), dict(labels)]
    if not any(fit.shape[1:] for side in sides for fit in side.values()):
        return None

    def fit(*batch: Any) -> tuple[Any, ...]:
        fitted = [_side(fits, part) for fits, part in zip(sides, batch, strict=False)]
        return (*fitted, *batch[2:])

    return fit


def columns_of(fits: Mapping[str, Fit], form: Any) -> Any:
    """Return the argument of ``ctx.dataset`` for inputs or outputs, some with separate columns."""
    if not any(fit.apart for fit in fits.values()):
        return form
    found: dict[str, Any] = {}
    for name, fit in fits.items():
        if fit.apart:
            found |= {_key(name, column): column for column in fit.place}
        else:
            found[name] = fit.place
    return found


def _side(fits: Mapping[str, Fit], part: Any) -> Any:
    if not fits:
        return part
    found = {}
    for name, fit in fits.items():
        if fit.apart:
            found[name] = fit.apply([part[_key(name, column)] for column in fit.place])
        else:
            found[name] = fit.apply(part[name] if isinstance(part, Mapping) else part)
    return found if len(found) > 1 else next(iter(found.values()))


def _key(name: str, column: str) -> str:
    return f"{name}\0{column}"


def _named(place: Place) -> str:
    if isinstance(place, str):
        return f"column {place!r}"
    shown = place if len(place) <= _SHOWN else [*place[:_SHOWN], "…"]
    return f"the columns {', '.join(shown)}"


def _size(shape: Shape) -> int | None:
    return None if None in shape else math.prod(size or 0 for size in shape)


def _is_dense(found: Any) -> bool:
    if isinstance(found, np.ndarray):
        return True
    import tensorflow as tf

    return isinstance(found, tf.Tensor)


def _library(found: Any) -> Any:
    if isinstance(found, np.ndarray):
        return np
    import tensorflow as tf

    return tf


def _rows(found: Any) -> int:
    return len(found) if isinstance(found, np.ndarray) else -1


def _float(found: Any) -> Any:
    """Convert numbers to float32, like stacked columns."""
    if isinstance(found, np.ndarray):
        return found.astype(np.float32, copy=False)
    import tensorflow as tf

    return tf.cast(found, tf.float32)
