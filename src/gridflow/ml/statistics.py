"""The statistics that layers need of a DataFrame's columns, and their results.

Imports neither Spark nor Keras. Equal wants are computed once, however many layers have them.

`Sketch` has quantiles of more values than fit into memory, with bounded error. It uses sorted
buffers of equal size; two of one weight are merged into one of twice the weight, taking every other
value: Manku, Rajagopalan and Lindsay, "Approximate medians and other quantiles in one pass and with
limited memory" (1998). Each such step adds at most half a weight to the error of a rank, so all of
them add ``levels / (2 * size)`` of the values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Moments:
    """Mean and variance at each position of a row, of one column or several combined."""

    columns: tuple[str, ...]


class FoundMoments(NamedTuple):
    """Over rows without nulls; the arrays have the shape of a row, () for a column of numbers."""

    rows: int
    mean: np.ndarray
    variance: np.ndarray


@dataclass(frozen=True)
class Vocabulary:
    """How often each token occurs.

    `needs_documents`: Whether to count the rows in which each token occurs.
    `is_text`: Whether to split the column's strings into tokens, as the next three attributes say.
    `ngrams` (tuple of int or None): As in ``keras.layers.TextVectorization``.
    """

    column: str
    needs_documents: bool = False
    is_text: bool = False
    standardize: Any = None
    split: Any = None
    ngrams: tuple[int, ...] | None = None


class FoundVocabulary(NamedTuple):
    """Tokens by decreasing frequency; ties by decreasing value.

    ``counts`` are occurrences, ``documents`` the rows in which a token occurs, ``rows`` all rows.
    """

    tokens: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    rows: int


@dataclass(frozen=True)
class Quantiles:
    """Boundaries of ``bins`` of equal size, up to an error of their ranks.

    The error is a fraction of all values.
    """

    column: str
    bins: int
    error: float


@dataclass(frozen=True)
class Extremes:
    """The least and the greatest value of a column of integers."""

    column: str


Want = Moments | Vocabulary | Quantiles | Extremes


def columns_of(want: Want) -> tuple[str, ...]:
    """Return the columns of a want."""
    return want.columns if isinstance(want, Moments) else (want.column,)


#: Values in a buffer, by the allowed error. With 24 levels, for 10^11 values in a partition and
#: more, it uses three quarters of the error.
_SIZE: Final = 16
#: Values that a partition returns, by the allowed error: they use an eighth of it.
_POINTS: Final = 4


class Sketch:
    """The values of one partition.

    `error`: The allowed error of a quantile's rank, as a fraction of all values.
    """

    def __init__(self, error: float) -> None:
        self._size, self._points = math.ceil(_SIZE / error), math.ceil(_POINTS / error)
        self._new: list[np.ndarray] = []
        self._waiting = 0
        self._levels: list[np.ndarray | None] = []
        self._offset = 0

    def add(self, values: np.ndarray) -> None:
        """Add values; NaN is the greatest."""
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
            # Alternate the starting value, so that errors cancel out.
            buffer = np.sort(np.concatenate([there, buffer]))[self._offset :: 2]
            self._offset = 1 - self._offset
        self._levels.append(buffer)

    def state(self) -> bytes:
        """Return the number of values, and samples that represent the same number each."""
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
    """Return the boundaries of equal-sized bins over all partitions."""
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
    """Return the values at ranks, with each value repeated by its weight."""
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(weights[order])
    places = np.searchsorted(ends, ranks * (1 - 1e-12))
    return np.asarray(values[order][np.minimum(places, len(values) - 1)])
