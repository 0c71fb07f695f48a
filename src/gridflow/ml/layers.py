"""Keras's preprocessing layers: the statistics that each one needs, and how to set its state.

Uses only public names of Keras: sets the same state as ``layer.adapt`` computes.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gridflow.errors import DataError, InvalidArgument
from gridflow.ml.statistics import (
    Extremes,
    FoundMoments,
    FoundVocabulary,
    Moments,
    Quantiles,
    Vocabulary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow.ml.statistics import Want

#: Ranks of quantiles are ten times as exact as the layer's epsilon requires.
_EXACTER: Final = 10
#: Number of tokens for missing and unknown values, which may be among the most frequent.
_SPECIAL: Final = 2


class Learner(ABC):
    """A layer and the columns from which it learns."""

    def __init__(self, layer: Any, columns: Sequence[str]) -> None:
        self.layer, self.columns = layer, tuple(columns)
        if len(columns) > 1 and not isinstance(self, _Normalization):
            raise InvalidArgument(
                f"{self.title} adapts to one column, got {', '.join(map(repr, columns))}; only "
                f"Normalization can combine columns."
            )

    @property
    def title(self) -> str:
        """The layer's name for messages."""
        return f"{type(self.layer).__name__} {self.layer.name!r}"

    @property
    def is_given(self) -> bool:
        """Whether the layer was created with its state."""
        return False

    @abstractmethod
    def want(self) -> Want:
        """Return the needed statistics."""

    def limit(self) -> int | None:
        """Return the maximum number of tokens of the layer; None: no limit."""
        return None

    @abstractmethod
    def learn(self, found: Any) -> None:
        """Set the layer's state."""


class _Normalization(Learner):
    @property
    def is_given(self) -> bool:
        return self.layer.input_mean is not None

    def want(self) -> Moments:
        return Moments(self.columns)

    def learn(self, found: FoundMoments) -> None:
        # For a mean of all values, a column of numbers has rows without an axis, as in Keras.
        shape = found.mean.shape or ((1,) if self.layer.axis else ())
        mean, variance = found.mean.reshape(shape), found.variance.reshape(shape)
        if not self.layer.built:
            self.layer.build((None, *shape))
        axes = len(shape) + 1
        kept = sorted(axis % axes for axis in self.layer.axis)
        if 0 in kept:
            raise InvalidArgument(
                f"{self.title} has axis={self.layer.axis}, which is the axis of the rows, for rows "
                f"of the shape {shape}. Use axis=-1, or axis=None for a single mean."
            )
        reduced = tuple(axis - 1 for axis in range(1, axes) if axis not in kept)
        total = mean.mean(axis=reduced)  # all positions have the same number of values
        apart = mean - mean.mean(axis=reduced, keepdims=True)
        spread = (variance + np.square(apart)).mean(axis=reduced)
        if tuple(self.layer.adapt_mean.shape) != total.shape:
            raise DataError(
                f"{self.title} was built for means of the shape "
                f"{tuple(self.layer.adapt_mean.shape)}, and the columns "
                f"{', '.join(self.columns)} have {total.shape}."
            )
        self.layer.adapt_mean.assign(total)
        self.layer.adapt_variance.assign(spread)
        self.layer.finalize_state()


class _Lookup(Learner):
    @property
    def is_given(self) -> bool:
        return self.layer.get_config()["vocabulary"] is not None

    def want(self) -> Vocabulary:
        return Vocabulary(self.columns[0], self._mode() == "tf_idf")

    def limit(self) -> int | None:
        most = self.layer.max_tokens
        return None if not most else max(most - self._first(), 0) + _SPECIAL

    def _special(self) -> tuple[Any, ...]:
        return (self.layer.mask_token, self.layer.oov_token)

    def _mode(self) -> str:
        return str(self.layer.output_mode)

    def _first(self) -> int:
        """Return the index of the first learned token."""
        has_mask = self._special()[0] is not None and self._mode() == "int"
        return int(has_mask) + int(self.layer.num_oov_indices)

    def learn(self, found: FoundVocabulary) -> None:
        kinds = (str,) if found.tokens.dtype == object else (int, np.integer)
        self._check_kind(kinds[0])
        special = [token for token in self._special() if token is not None]
        is_token = ~np.isin(found.tokens, special) if special else np.full(len(found.tokens), True)
        tokens, documents = found.tokens[is_token], found.documents[is_token]
        limit = self.limit()
        if limit is not None:
            tokens, documents = tokens[: limit - _SPECIAL], documents[: limit - _SPECIAL]
        if not len(tokens):
            raise DataError(
                f"{self.title} finds no tokens in the column {self.columns[0]!r} other than "
                f"{', '.join(map(repr, special)) or 'none'}, or max_tokens leaves no room for any."
            )
        weights = None
        if self._mode() == "tf_idf":
            weights = np.log(1 + found.rows / (1 + documents))
        self.layer.set_vocabulary(tokens, idf_weights=weights)

    def _check_kind(self, kind: type) -> None:
        wanted = self._kind()
        if kind is not wanted:
            names = {str: "strings", int: "integers"}
            raise InvalidArgument(
                f"{self.title} takes {names[wanted]}, but the column {self.columns[0]!r} holds "
                f"{names[kind]}. Cast it first, or use the other lookup."
            )

    def _kind(self) -> type:
        return str


class _IntegerLookup(_Lookup):
    def _kind(self) -> type:
        return int


class _TextVectorization(_Lookup):
    def want(self) -> Vocabulary:
        about = self._about()
        ngrams = about["ngrams"]
        return Vocabulary(
            self.columns[0],
            needs_documents=self._mode() == "tf_idf",
            is_text=True,
            standardize=about["standardize"],
            split=about["split"],
            ngrams=tuple(range(1, ngrams + 1)) if isinstance(ngrams, int) else ngrams,
        )

    def _about(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.layer.get_config())

    def limit(self) -> int | None:
        most = self._about()["max_tokens"]
        return None if not most else max(most - self._first(), 0) + _SPECIAL

    def _special(self) -> tuple[Any, ...]:
        return ("", "[UNK]")  # fixed by Keras

    def _mode(self) -> str:
        return str(self._about()["output_mode"])

    def _first(self) -> int:
        return 2 if self._mode() == "int" else 1


class _Discretization(Learner):
    @property
    def is_given(self) -> bool:
        return self.layer.num_bins is None

    def want(self) -> Quantiles:
        return Quantiles(self.columns[0], self.layer.num_bins, self.layer.epsilon / _EXACTER)

    def learn(self, found: list[float]) -> None:
        self.layer.bin_boundaries = found


class _CategoryEncoding(Learner):
    def want(self) -> Extremes:
        return Extremes(self.columns[0])

    def learn(self, found: tuple[int, int]) -> None:
        least, most = found
        if least < 0:
            raise DataError(
                f"{self.title} encodes integers from 0, but the column {self.columns[0]!r} has "
                f"{least}. Use an IntegerLookup, which accepts any integer."
            )
        if self.layer.built and most >= self.layer.num_tokens:
            raise InvalidArgument(
                f"{self.title} is already in use with num_tokens={self.layer.num_tokens}, but the "
                f"column {self.columns[0]!r} has {most}. Adapt it before it is called."
            )
        if not self.layer.built:
            self.layer.num_tokens = most + 1


_LEARNERS: Final = {
    "Normalization": _Normalization,
    "StringLookup": _Lookup,
    "IntegerLookup": _IntegerLookup,
    "TextVectorization": _TextVectorization,
    "Discretization": _Discretization,
    "CategoryEncoding": _CategoryEncoding,
}


def learner_class(layer: object) -> type[Learner] | None:
    """Return the learner class of a layer, or None if it can't be adapted."""
    keras = sys.modules.get("keras")
    for name, learner in _LEARNERS.items():
        if keras is not None and isinstance(layer, getattr(keras.layers, name)):
            return learner
    return None


def learner(layer: object, columns: Sequence[str]) -> Learner:
    """Return the learner of a layer for columns.

    Raises
    ------
    InvalidArgument
        The layer can't be adapted, or was created with its state.
    """
    found = learner_class(layer)
    if found is None:
        raise InvalidArgument(
            f"adapt supports the Keras 3 layers {', '.join(_LEARNERS)}, models with these layers "
            f"and keras.utils.FeatureSpace; got {layer!r}."
        )
    made = found(layer, columns)
    if made.is_given:
        raise InvalidArgument(
            f"{made.title} was created with its vocabulary, mean or boundaries, so there is "
            "nothing to learn. Create it without them."
        )
    return made
