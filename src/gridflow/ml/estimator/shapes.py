"""From rows as columns hold them to the shapes that a model's inputs and outputs have.

A column is flat, or nested as its owner thought fit; a model takes images and sequences. Where the
number of elements decides it a row is reshaped, in row-major order. Columns of arrays beside one
another become the last axis (two columns of 5 steps for an input of (5, 2)), or the first.
Imports no Spark.
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

#: Shape of a row; None for a size that differs.
Shape = tuple[int | None, ...]
#: Columns that an error names.
_SHOWN: Final = 4


@dataclass(frozen=True)
class Fit:
    """How the columns of one input or output become its tensor.

    Attributes
    ----------
    what : {'input', 'output'}
    name : str
    shape : tuple of int or None
        Of a row.
    place : str or list of str
    apart : bool
        Whether its columns come as tensors of their own.
    """

    what: str
    name: str
    shape: Shape
    place: Place
    apart: bool

    @classmethod
    def of(cls, what: str, name: str, tensor: Any, place: Place, lists: Collection[str]) -> Fit:
        """Return how columns fit a symbolic tensor of a model.

        Parameters
        ----------
        what, name
        tensor
            The model's.
        place
        lists : collection of str
            Columns that hold arrays or vectors.
        """
        shape = tuple(None if size is None else int(size) for size in tensor.shape[1:])
        apart = is_apart(shape, place, lists)
        if apart:
            axis_of(what, name, shape, place)
        return cls(what, name, shape, place, apart)

    def apply(self, found: Any) -> Any:
        """Return a batch of the columns in the shape of the input or output.

        Parameters
        ----------
        found : array, tensor, or sequence of them
            What the columns hold; of each where they are apart.

        Raises
        ------
        SchemaError
            The numbers of elements differ.
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
        """Return the shape that rows are to have."""
        given = tuple(found.shape[1:])
        if self.what == "output" and _size(given) == _size(self.shape[:-1]) != _size(self.shape):
            return self.shape[:-1]  # classes, each a number
        return self.shape

    def _reshaped(self, found: Any, wanted: Shape) -> Any:
        given = tuple(found.shape[1:])
        sizes = _size(given), _size(wanted)
        if not _is_dense(found) or None in sizes or given == wanted:
            return found
        if sizes[0] == sizes[1]:
            return _library(found).reshape(found, (_rows(found), *wanted))
        # What a loss makes of labels is for it to say.
        return found if self.what == "output" else self._refuse(found, wanted)

    def _refuse(self, found: Any, wanted: Shape) -> Any:
        given = tuple(found.shape[1:])
        raise SchemaError(
            f"the model's {self.what} {self.name!r} takes rows of the shape {self.shape}, and "
            f"{_named(self.place)} holds rows of the shape {given}: {_size(given)} elements, where "
            f"{_size(wanted)} are needed{' of each column' if self.apart else ''}. Give columns "
            "with as many, or a model whose Input has the shape of the rows."
        )


def is_apart(shape: Shape, place: Place, lists: Collection[str]) -> bool:
    """Return whether the places of columns beside one another depend on the shape of an input."""
    return not isinstance(place, str) and bool(shape[1:]) and any(name in lists for name in place)


def axis_of(what: str, name: str, shape: Shape, place: Place) -> int:
    """Return along which axis of a row several columns of arrays lie: 1 the last, 0 the first.

    Raises
    ------
    SchemaError
        Neither is as long as there are columns.
    """
    if None not in shape and len(place) in (shape[0], shape[-1]):
        return int(shape[-1] == len(place))
    raise SchemaError(
        f"the model's {what} {name!r} takes rows of the shape {shape}, and {_named(place)} are "
        f"{len(place)} arrays beside one another: neither its first nor its last axis has "
        f"{len(place)} places. Put them together in one column, in row-major order "
        "(pyspark.sql.functions.concat)."
    )


def fitting(features: Mapping[str, Fit], labels: Mapping[str, Fit]) -> Callable[..., Any] | None:
    """Return what batches go through, None where each tensor is as it comes.

    Parameters
    ----------
    features, labels : mapping
        For each input and output, by name; empty where the model declares none.
    """
    sides = [dict(features), dict(labels)]
    if not any(fit.shape[1:] for side in sides for fit in side.values()):
        return None

    def fit(*batch: Any) -> tuple[Any, ...]:
        fitted = [_side(fits, part) for fits, part in zip(sides, batch, strict=False)]
        return (*fitted, *batch[2:])

    return fit


def columns_of(fits: Mapping[str, Fit], form: Any) -> Any:
    """Return what ``ctx.dataset`` takes for inputs or outputs, of which some come apart."""
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
    """Return numbers as float32, as columns beside one another are."""
    if isinstance(found, np.ndarray):
        return found.astype(np.float32, copy=False)
    import tensorflow as tf

    return tf.cast(found, tf.float32)
