"""Chunks of rows: the unit that a feeder sends."""

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
#: Columns in Arrow format.
COLUMNS: Final = b"C"
#: Either of them, in shared memory.
SHARED: Final = b"S"

#: Approximate size of a chunk; with a slow source, chunks are sent sooner.
CHUNK_BYTES: Final = 512 << 10
#: Index of a chunk's first row in its partition, and the number of rows.
SPAN: Final = struct.Struct(">QQ")
#: For a chunk in shared memory: its kind, slot, offset and size in bytes.
PLACE: Final = struct.Struct(">cBQQ")
_FIRST_ROWS: Final = 16
MOST_ROWS: Final = 8192
_FLUSH_SECONDS: Final = 0.1


@dataclass(frozen=True)
class Chunk:
    """Rows to send.

    `kind`: `ROWS` or `COLUMNS`.
    `first`, `count`: Index of the first row in its partition, and the number of rows.
    `size`: Size of the content, in bytes.
    `write`: Writes the content into a buffer of that size.
    """

    kind: bytes
    first: int
    count: int
    size: int
    write: Callable[[memoryview], None]

    def message(self) -> bytearray:
        head = self.kind + SPAN.pack(self.first, self.count)
        whole = bytearray(len(head) + self.size)
        whole[: len(head)] = head
        self.write(memoryview(whole)[len(head) :])
        return whole


_plain: Final = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)

#: Makes chunks of rows, starting at an index.
Cut = Callable[[Iterable[Any], int], Iterator[Chunk]]


def cut(rows: Iterable[Any], first: int) -> Iterator[Chunk]:
    return in_chunks(itertools.islice(rows, first, None), first)


def in_chunks(rows: Iterable[Any], first: int = 0) -> Iterator[Chunk]:
    """Yield rows in chunks of similar size."""
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
    """Return serialized rows; by default with plain lists, as Spark expects."""
    try:
        return dump(rows)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(rows))  # classes defined in the program
