"""A dataset's rows outside of training: each counts once, whatever their number on each rank.

To test and to predict, all ranks make equal steps as in training (`gridflow._feed.plan.epochs`),
over the rows in order. Where a rank has fewer rows than there are steps, some of its batches are
empty. Who iterates them has to know that: Keras is told by the patches in `gridflow._keras`.
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
    """What Keras tests and predicts on when it is given a dataset of `TrainingContext.dataset`.

    Parameters
    ----------
    source : EpochSource
        What the dataset is made of, changed for one pass over its rows (`EpochSource.in_order`).
    make : callable
        Turns the source into a dataset as the strategy wants it.
    own_rows : sequence of int
        Rows that count of each rank that takes part in a step.

    Attributes
    ----------
    functions : mapping
        Keras's functions that know empty batches, by model.
    """

    def __init__(
        self, source: EpochSource, make: Callable[[EpochSource], Any], own_rows: Sequence[int]
    ) -> None:
        self._source, self._make, self._own_rows = source, make, tuple(own_rows)
        self.functions: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def view(self) -> Any:
        """The dataset, which knows this object in turn."""
        return attach(self._make(self._source), self)

    @property
    def has_empty_batches(self) -> bool:
        """Whether some batches of some rank are empty; all ranks agree on it."""
        return min(self._own_rows) < self._source.steps * self._source.replicas

    @functools.cached_property
    def row(self) -> Any:
        """One real row in the form of a batch, to stand in for an empty one. Runs operations."""
        import dataclasses

        import tensorflow as tf

        alone = dataclasses.replace(self._source, own_rows=None, on_epoch=None)
        batch = next(iter(alone.dataset(0).take(1)))
        return tf.nest.map_structure(lambda part: part[:1], batch)

    def in_order(self, rows: np.ndarray) -> np.ndarray:
        """Return what was predicted on all ranks together by rank, and then by row."""
        if len(self._own_rows) == 1:
            return rows
        places = self._places()
        return rows[np.argsort(places[: len(rows)])] if len(rows) <= len(places) else rows

    def _places(self) -> np.ndarray:
        """Return the place of each row in the order in which replicas hand rows over."""
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
    """Return how many rows of each rank count: those that no other rank has lent."""
    return [count - lent for count, lent in zip(rows, borrowed, strict=True)]


def attach(dataset: Any, once: Any) -> Any:
    """Let a dataset know what it is outside of training, or a function that tells; return it."""
    setattr(dataset, _ATTRIBUTE, once)
    return dataset


def is_attached(dataset: object) -> bool:
    """Return whether a dataset knows what it is outside of training, and needn't find out."""
    once = getattr(dataset, _ATTRIBUTE, None)
    return once is not None and not callable(once)


def view_of(dataset: object) -> Any:
    """Return what `attach` noted, if it did."""
    once = getattr(dataset, _ATTRIBUTE, None)
    if callable(once):
        once = once()
        setattr(dataset, _ATTRIBUTE, once)
    return once
