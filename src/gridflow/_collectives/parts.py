"""What a rank gives to a sum: arrays that travel as one, each weighted while it is copied.

The numbers of a sum begin with a note of each rank, one byte for each number: how much the rank
counts, flags, and what its arrays look like. A rank writes its own and zeros for the others, so
that after the sum all ranks have all notes. Every type of numbers that can be exchanged represents
a byte exactly.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

#: TensorFlow takes arrays as they are that begin at a multiple of this.
_ALIGNED_BYTES: Final = 64
_NOTE: Final = struct.Struct("<QBI")


class Note(NamedTuple):
    """What a rank tells the others beside its numbers.

    `weight`: How much they count.
    `checksum`: Of the shapes.
    """

    weight: int
    flags: int
    checksum: int


class Whole:
    """One array, as it is.

    `values`: With one dimension.
    """

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values
        self.dtype, self.length, self.nbytes = values.dtype, len(values), values.nbytes

    def write(self, start: int, into: np.ndarray[Any, Any]) -> None:
        """Write the numbers from ``start`` on."""
        into[...] = self._values[start : start + len(into)]

    def finish(self, start: int, sums: np.ndarray[Any, Any]) -> None:
        """Leave the sums from ``start`` on as they are."""


class Parts:
    """Several arrays and a note.

    `arrays`: The same shapes on all ranks.
    `dtype`: The floating-point type in which they are exchanged.
    `weight`: How much this rank's numbers count. The sums are then weighted means, and zeros if no
        rank counts. Numbers that don't count may be anything.
    `told`: A byte of flags.
    `checksum`: Of what must be the same on all ranks. Default: of the shapes.
    """

    def __init__(
        self,
        arrays: Sequence[np.ndarray[Any, Any]],
        dtype: np.dtype[Any],
        rank: int,
        size: int,
        *,
        weight: int | None = None,
        told: int = 0,
        checksum: int | None = None,
    ) -> None:
        #: With one dimension.
        self.arrays = [np.asarray(each, order="C").reshape(-1) for each in arrays]
        self._shapes = [each.shape for each in arrays]
        self._size, self.weight = size, weight
        step = max(1, _ALIGNED_BYTES // dtype.itemsize)
        lengths = [size * _NOTE.size, *map(len, self.arrays)]
        #: Where the notes and the arrays begin, and where the last one ends.
        self._bounds = [0, *itertools.accumulate(-(-each // step) * step for each in lengths)]
        self.dtype, self.length = dtype, self._bounds[-1]
        self.nbytes = self.length * dtype.itemsize
        self.checksum = checksum_of(self._shapes) if checksum is None else checksum
        note = np.frombuffer(_NOTE.pack(weight or 0, told, self.checksum), np.uint8)
        self._notes = np.zeros(lengths[0], dtype)
        self._notes[rank * _NOTE.size : (rank + 1) * _NOTE.size] = note
        self._share = 1.0

    @property
    def is_plain(self) -> bool:
        """Whether all numbers are float32, as those that travel."""
        return all(each.dtype == self.dtype == np.float32 for each in self.arrays)

    def write(self, start: int, into: np.ndarray[Any, Any]) -> None:
        """Write the numbers from ``start`` on, weighted, and zeros where there are none."""
        stop = start + len(into)
        for place, values in enumerate([self._notes, *self.arrays]):
            begin, end = self._bounds[place : place + 2]
            if begin >= stop or end <= start:
                continue
            target = into[max(begin - start, 0) : end - start]
            given = values[max(start - begin, 0) :][: len(target)]
            target[len(given) :] = 0
            target = target[: len(given)]
            if place and self.weight == 0:
                target[...] = 0
            elif place and self.weight is not None:
                np.multiply(given, self.dtype.type(self.weight), out=target, casting="unsafe")
            else:
                target[...] = given

    def finish(self, start: int, sums: np.ndarray[Any, Any]) -> None:
        """Divide the sums from ``start`` on by the sum of the weights."""
        if self.weight is None:
            return
        first = self._bounds[1]
        if start == 0:  # pieces are never as small as the notes
            total = sum(note.weight for note in self.notes(sums))
            self._share = 1 / total if total else 0.0
        values = sums[max(first - start, 0) :]
        np.multiply(values, self.dtype.type(self._share), out=values)

    # What comes back -------------------------------------------------------------------------

    def sums(self, total: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Return the arrays of the sum, which lie in ``total``."""
        return [
            total[start : start + len(values)].reshape(shape)
            for start, values, shape in zip(
                self._bounds[1:-1], self.arrays, self._shapes, strict=True
            )
        ]

    def notes(self, total: np.ndarray[Any, Any]) -> list[Note]:
        """Return the notes of all ranks."""
        content = total[: self._size * _NOTE.size].astype(np.uint8).tobytes()
        return [Note(*each) for each in _NOTE.iter_unpack(content)]

    def describe(self) -> str:
        """Return the shapes in words."""
        return ", ".join(map(str, self._shapes))


def checksum_of(shapes: Sequence[tuple[int, ...]]) -> int:
    """Return a number for the shapes of arrays."""
    return zlib.crc32(repr(list(shapes)).encode())
