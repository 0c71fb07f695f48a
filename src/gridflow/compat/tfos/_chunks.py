"""Rows cut into chunks: what a feeder sends at a time."""

from __future__ import annotations

import functools
import itertools
import pickle
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import cloudpickle

from gridflow.compat.tfos import _lists

ROWS: Final = b"R"
#: Rows as columns in Arrow's format.
COLUMNS: Final = b"C"
#: Either of them, in memory that both sides have.
SHARED: Final = b"S"

#: Rows are sent in chunks of about this size; a slow source's are sent sooner.
CHUNK_BYTES: Final = 512 << 10
#: The place of a chunk's first row in its partition, and how many rows it has.
SPAN: Final = struct.Struct(">QQ")
#: Of a chunk in shared memory: the letter of its kind, its slot, where it begins, and its bytes.
PLACE: Final = struct.Struct(">cBQQ")
_FIRST_ROWS: Final = 16
MOST_ROWS: Final = 8192
_FLUSH_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Chunk:
    """Rows on their way.

    Attributes
    ----------
    kind : bytes
        `ROWS` or `COLUMNS`.
    first, count : int
        The place of the first row in its partition, and how many there are.
    size : int
        Bytes of the content.
    write : callable
        Writes the content into memory of that size.
    """

    kind: bytes
    first: int
    count: int
    size: int
    write: Callable[[memoryview], None]

    def message(self) -> bytearray:
        """Return the chunk as it is sent."""
        head = self.kind + SPAN.pack(self.first, self.count)
        whole = bytearray(len(head) + self.size)
        whole[: len(head)] = head
        self.write(memoryview(whole)[len(head) :])
        return whole


_plain: Final = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)

#: Makes chunks of rows, from one on.
Cut = Callable[[Iterable[Any], int], Iterator[Chunk]]


def cut(rows: Iterable[Any], first: int) -> Iterator[Chunk]:
    return in_chunks(itertools.islice(rows, first, None), first)


def in_chunks(rows: Iterable[Any], first: int = 0) -> Iterator[Chunk]:
    """Yield rows in chunks of about the same size."""
    limit, chunk, began = _FIRST_ROWS, [], time.monotonic()
    for row in rows:
        chunk.append(row)
        if len(chunk) < limit and (
            len(chunk) % _FIRST_ROWS or time.monotonic() - began < _FLUSH_SECONDS
        ):
            continue
        found = _chunk(chunk, first)
        limit = max(1, min(MOST_ROWS, CHUNK_BYTES * len(chunk) // found.size))
        yield found
        first += len(chunk)
        chunk, began = [], time.monotonic()
    if chunk:
        yield _chunk(chunk, first)


def _chunk(rows: list[Any], first: int) -> Chunk:
    content = pickled(rows, _lists.pickled)

    def write(memory: memoryview) -> None:
        memory[:] = content

    return Chunk(ROWS, first, len(rows), len(content), write)


def pickled(rows: list[Any], dump: Callable[[list[Any]], bytes] = _plain) -> bytes:
    """Return rows in the form in which they are sent; by default with plain lists, for Spark."""
    try:
        return dump(rows)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(rows))  # classes of the program's own
