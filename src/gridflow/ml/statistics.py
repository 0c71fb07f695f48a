"""What layers want to know of a DataFrame's columns, and what is found: no Spark, no Keras.

Equal wants are found once, however many layers have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Moments:
    """Mean and variance at each place of a row: of one column, or of several side by side."""

    columns: tuple[str, ...]


class FoundMoments(NamedTuple):
    """Of rows without nulls; the arrays have the shape of a row, () for a column of numbers."""

    rows: int
    mean: np.ndarray
    variance: np.ndarray


@dataclass(frozen=True)
class Vocabulary:
    """How often each token occurs.

    Attributes
    ----------
    column : str
    needs_documents : bool
        Whether it is wanted in how many rows each token is.
    is_text : bool
        Whether the column's strings are to be cut into tokens as the next three say it.
    standardize, split : str, function or None
    ngrams : tuple of int or None
        As of ``keras.layers.TextVectorization``.
    """

    column: str
    needs_documents: bool = False
    is_text: bool = False
    standardize: Any = None
    split: Any = None
    ngrams: tuple[int, ...] | None = None


class FoundVocabulary(NamedTuple):
    """The most frequent first; of equally frequent ones the greater.

    ``counts`` are occurrences, ``documents`` the rows that a token occurs in, ``rows`` all rows.
    """

    tokens: np.ndarray
    counts: np.ndarray
    documents: np.ndarray
    rows: int


@dataclass(frozen=True)
class Quantiles:
    """Values that part a column's into ``bins`` of equal size, but for an error of their ranks.

    The error is a part of all values.
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
    """Return the columns that a want is about."""
    return want.columns if isinstance(want, Moments) else (want.column,)
