"""Quantiles of more values than fit into memory, with a bound of their error.

Sorted buffers of equal size; two of one weight become one of twice the weight, by every other
value: Manku, Rajagopalan and Lindsay, "Approximate medians and other quantiles in one pass and with
limited memory" (1998). Each such step adds at most half a weight to the error of a rank, so all of
them add ``levels / (2 * size)`` of the values. The jar does the same (``Sketch.java``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Values in a buffer, by the error that is allowed. For 24 levels, 10^11 values in a partition and
#: more, it takes three quarters of it.
_SIZE: Final = 16
#: Values that a partition hands over, by that error: they take an eighth of it.
_POINTS: Final = 4


class Sketch:
    """The values of one partition.

    Parameters
    ----------
    error : float
        By how much the rank of a quantile may be wrong, as a part of all values.
    """

    def __init__(self, error: float) -> None:
        self._size, self._points = math.ceil(_SIZE / error), math.ceil(_POINTS / error)
        self._new: list[np.ndarray] = []
        self._waiting = 0
        self._levels: list[np.ndarray | None] = []
        self._offset = 0

    def add(self, values: np.ndarray) -> None:
        """Take values into account; NaN is the greatest."""
        self._new.append(values.astype(np.float32).ravel())
        self._waiting += self._new[-1].size
        if self._waiting < self._size:
            return
        values = np.concatenate(self._new)
        whole = len(values) - len(values) % self._size
        for first in range(0, whole, self._size):
            self._carry(np.sort(values[first : first + self._size]))
        self._new, self._waiting = [values[whole:]], len(values) - whole

    def _carry(self, buffer: np.ndarray) -> None:
        for level, there in enumerate(self._levels):
            if there is None:
                self._levels[level] = buffer
                return
            self._levels[level] = None
            # From the first and from the second in turn, so that the errors go both ways.
            buffer = np.sort(np.concatenate([there, buffer]))[self._offset :: 2]
            self._offset = 1 - self._offset
        self._levels.append(buffer)

    def state(self) -> bytes:
        """Return how many values there were, and some that stand for as many each."""
        parts = [*self._new, *(each for each in self._levels if each is not None)]
        weights = [1] * len(self._new)
        weights += [1 << i for i, each in enumerate(self._levels) if each is not None]
        values = np.concatenate(parts) if parts else np.zeros(0)
        if not len(values):
            return b""
        count = sum(part.size * weight for part, weight in zip(parts, weights, strict=True))
        if len(values) > self._points:
            each = np.repeat(np.asarray(weights, np.float64), [part.size for part in parts])
            ranks = (np.arange(self._points) + 0.5) * (count / self._points)
            values = _at(values, each, ranks)
        return np.int64(count).tobytes() + values.astype(np.float32).tobytes()


def boundaries(states: Sequence[bytes], bins: int) -> list[float]:
    """Return the values that part those of all partitions into bins of equal size."""
    values, weights = [np.zeros(0, np.float32)], [np.zeros(0)]
    for state in states:
        if state:
            values.append(np.frombuffer(state, np.float32, offset=8))
            count = int(np.frombuffer(state, np.int64, 1)[0])
            weights.append(np.full(len(values[-1]), count / len(values[-1])))
    every, each = np.concatenate(values), np.concatenate(weights)
    if not len(every):
        return []
    ranks = np.arange(1, bins) / bins * each.sum()
    return [float(value) for value in _at(every, each, ranks)]


def _at(values: np.ndarray, weights: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the values at ranks, where each value counts as often as its weight says."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    places = np.searchsorted(ends, ranks * (1 - 1e-12))
    return np.asarray(values[order][np.minimum(places, len(values) - 1)])
