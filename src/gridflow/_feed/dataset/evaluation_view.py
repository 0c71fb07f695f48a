"""A dataset's rows outside training: each counts once, whatever their number on each rank.

For evaluation and prediction, all ranks run equal steps as in training
(`gridflow._feed.plan.epochs`), over the rows in order. If a rank has fewer rows than there are
steps, some of its batches are empty. Consumers must handle this; the patches in `gridflow._keras`
do it for Keras.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from gridflow._feed.dataset.epochs import EpochSource

__all__ = [
    "EvaluationView",
    "attach",
    "is_attached",
    "own_rows",
    "view_of",
]

_ATTRIBUTE: Final = "_gridflow_evaluation"


class EvaluationView:
    """What Keras evaluates and predicts on, instead of a dataset of `TrainingContext.dataset`.

    `source`: What the dataset is made of, changed for one pass over its rows
        (`EpochSource.in_order`).
    `make`: Converts the source to a dataset for the strategy.
    `own_rows`: Rows that count, for each rank that takes part in a step.
    `functions`: Keras's functions that handle empty batches, by model.
    """

    def __init__(
        self, source: EpochSource, make: Callable[[EpochSource], Any], own_rows: Sequence[int]
    ) -> None:
        self._source, self._make, self._own_rows = source, make, tuple(own_rows)
        self.functions: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def view(self) -> Any:
        """The dataset, which refers to this object."""
        return attach(self._make(self._source), self)

    @property
    def has_empty_batches(self) -> bool:
        """Whether some rank has empty batches; the same on all ranks."""
        return min(self._own_rows) < self._source.steps * self._source.replicas

    @property
    def is_even(self) -> bool:
        """Whether all ranks have as many rows, and none borrows some."""
        return len(set(self._own_rows)) == 1 and not self.has_empty_batches

    @functools.cached_property
    def row(self) -> Any:
        """One real row as a batch, to replace an empty one. Runs operations."""
        import dataclasses

        import tensorflow as tf

        alone = dataclasses.replace(self._source, own_rows=None, on_epoch=None)
        batch = next(iter(alone.dataset(0).take(1)))
        return tf.nest.map_structure(lambda part: part[:1], batch)

    def in_order(self, rows: np.ndarray) -> np.ndarray:
        """Return the predictions of all ranks, ordered by rank and row."""
        if len(self._own_rows) == 1:
            return rows
        places = self._places()
        return rows[np.argsort(places[: len(rows)])] if len(rows) <= len(places) else rows

    def _places(self) -> np.ndarray:
        """Return the position of each row in the order in which replicas return rows."""
        source = self._source
        parts = source.steps * source.replicas
        starts = []
        for first, rows in zip(np.cumsum((0, *self._own_rows)), self._own_rows, strict=False):
            size, larger = divmod(rows, parts)
            numbers = np.arange(parts + 1)
            starts.append(first + numbers * size + np.minimum(numbers, larger))
        pieces = [np.arange(each[part], each[part + 1]) for part in range(parts) for each in starts]
        return np.concatenate(pieces)


def own_rows(rows: Sequence[int], borrowed: Sequence[int]) -> list[int]:
    """Return how many rows of each rank count: those that aren't borrowed."""
    return [count - lent for count, lent in zip(rows, borrowed, strict=True)]


def attach(dataset: Any, once: Any) -> Any:
    """Attach an evaluation view, or a function that returns it, to a dataset; return it."""
    setattr(dataset, _ATTRIBUTE, once)
    return dataset


def is_attached(dataset: object) -> bool:
    """Return whether a dataset has an evaluation view, not just a function."""
    once = getattr(dataset, _ATTRIBUTE, None)
    return once is not None and not callable(once)


def view_of(dataset: object) -> Any:
    """Return the attached evaluation view, or None."""
    once = getattr(dataset, _ATTRIBUTE, None)
    if callable(once):
        once = once()
        setattr(dataset, _ATTRIBUTE, once)
    return once
