"""The statistics that layers need of a DataFrame's columns, and their results.

Imports neither Spark nor Keras. Equal wants are computed once, however many layers have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


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
