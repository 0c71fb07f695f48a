"""Converts long texts and bytes, mostly images, to Python objects a few at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.memory import keep_freed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LONG_BYTES", "LongTexts", "are_long"]

#: Average bytes of an item from which on it counts as long.
LONG_BYTES: Final = 16 << 10
#: Bytes converted at a time: they stay in the CPU cache until TensorFlow copies them, and each
#: request costs half a millisecond.
_AT_ONCE_BYTES: Final = 8 << 20
#: A view, see "Variable-size Binary View Layout" in Arrow's format: short values are part of it.
_IN_THE_VIEW: Final = 12
_VIEW: Final = np.dtype(
    {
        "names": ["length", "begin", "buffer", "offset"],
        "formats": ["<i4", "V12", "<i4", "<i4"],
        "offsets": [0, 4, 8, 12],
    }
)


def are_long(pieces: Sequence[pa.Array]) -> bool:
    """Return whether the items of these arrays are long."""
    return _bytes(pieces) >= LONG_BYTES * max(1, sum(map(len, pieces)))


class LongTexts:
    """Rows of a window, whose slices are numpy arrays of bytes, created on demand.

    `pieces`: The items of all rows.
    `row_shape`: The shape of a row's items.
    `rows`: Rows of the window.
    `sources`: Which row of the pieces each of them is, see `gridflow._feed.plan.epochs.Window`.
    `at_once`: How many rows to request together.
    """

    def __init__(
        self,
        pieces: Sequence[pa.Array],
        row_shape: tuple[int, ...],
        rows: int,
        sources: np.ndarray | None,
    ) -> None:
        self._pieces = [
            _Views(piece) if pa.types.is_binary_view(piece.type) else _Items(piece)
            for piece in pieces
        ]
        self._shape = row_shape
        self._starts = np.cumsum([0, *map(len, pieces)])
        self._sources = sources
        self.at_once = max(1, _AT_ONCE_BYTES * rows // max(1, _bytes(pieces)))
        keep_freed()

    def __getitem__(self, rows: slice) -> np.ndarray:
        width = math.prod(self._shape)
        sources = np.arange(rows.start, rows.stop) if self._sources is None else self._sources[rows]
        items = (sources[:, None] * width + np.arange(width)).reshape(-1)
        found = np.empty(len(items), object)
        pieces = np.searchsorted(self._starts, items, side="right") - 1
        places = items - self._starts[pieces]
        for number, (piece, place) in enumerate(zip(pieces.tolist(), places.tolist(), strict=True)):
            found[number] = self._pieces[piece].item(place)
        return found.reshape(-1, *self._shape)


class _Items:
    """The items of an array as Python bytes, without Arrow's extra copy."""

    def __init__(self, piece: pa.Array) -> None:
        _, offsets, content = piece.buffers()
        kind = np.int64 if pa.types.is_large_binary(piece.type) else np.int32
        whole = np.frombuffer(offsets, kind)
        self._offsets = whole[piece.offset : piece.offset + len(piece) + 1].tolist()
        self._content = memoryview(content)
        self._nulls = piece.is_null().to_pylist() if piece.null_count else None

    def item(self, place: int) -> bytes | None:
        """Return one item; None for a null."""
        if self._nulls is not None and self._nulls[place]:
            return None
        return self._content[self._offsets[place] : self._offsets[place + 1]].tobytes()


class _Views:
    """The items of an array of views without nulls."""

    def __init__(self, piece: pa.BinaryViewArray) -> None:
        views = _views(piece)
        self._lengths = views["length"].tolist()
        self._buffers, self._offsets = views["buffer"].tolist(), views["offset"].tolist()
        self._begins = views["begin"]
        self._contents = [memoryview(buffer) for buffer in piece.buffers()[2:]]

    def item(self, place: int) -> bytes:
        length = self._lengths[place]
        if length <= _IN_THE_VIEW:
            begin: bytes = self._begins[place].tobytes()
            return begin[:length]
        offset = self._offsets[place]
        content: memoryview = self._contents[self._buffers[place]]
        return content[offset : offset + length].tobytes()


def _views(piece: pa.BinaryViewArray) -> np.ndarray:
    return np.frombuffer(piece.buffers()[1], _VIEW)[piece.offset : piece.offset + len(piece)]


def _bytes(pieces: Sequence[pa.Array]) -> int:
    return sum(
        # Arrow counts the whole buffers of a slice.
        int(_views(piece)["length"].sum(dtype=np.int64))
        if pa.types.is_binary_view(piece.type)
        else int(piece.nbytes)
        for piece in pieces
    )
