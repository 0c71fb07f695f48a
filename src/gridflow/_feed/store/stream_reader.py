"""The rows of a stream that have come to a rank, as its training process maps them."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING

from gridflow._feed.normalize import tensor_specs
from gridflow._feed.selection import refuse_left_out
from gridflow._feed.store import stream_files
from gridflow._feed.store.reader import Chunks
from gridflow._feed.store.stream import ASKED, LEFT_OUT
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

__all__ = ["StreamReader", "StreamRows", "only"]


class StreamReader:
    """The rows of a stream that are there, from the first one that wasn't taken.

    Parameters
    ----------
    name : str
    folder : Path
        Of the segments.
    first : int
        The segment to begin with.
    skip : int, default 0
        Rows of it that were taken before.

    Attributes
    ----------
    found, taken : int
        Rows that were mapped since, and that were taken.
    """

    def __init__(self, name: str, folder: Path, first: int, skip: int = 0) -> None:
        self.name, self._folder = name, folder
        self._next, self._skip = first, skip
        self._segments: deque[pa.RecordBatch] = deque()
        self.found = self.taken = 0
        #: The last rows that were taken, to be repeated where the others have more.
        self.last: pa.RecordBatch | None = None

    @property
    def mapped(self) -> int:
        """The number after the last segment that was mapped."""
        return self._next

    @property
    def rows(self) -> int:
        """Rows that are there."""
        return sum(batch.num_rows for batch in self._segments)

    def look(self, segments: int) -> None:
        """Map what has come: all segments before this number."""
        while self._next < segments:
            batch = stream_files.read(self._folder, self._next)
            self._next += 1
            self._segments.append(batch.slice(self._skip) if self._skip else batch)
            self._skip = 0
            self.found += self._segments[-1].num_rows

    def schema(self) -> pa.Schema:
        """Return the schema of the next rows."""
        return self._segments[0].schema

    @property
    def left_out(self) -> dict[str, str]:
        """Columns of the next rows that can't be fed, and why."""
        return _left_out(self.schema())

    @property
    def is_asked(self) -> bool:
        """Whether the rows are to be answered."""
        return ASKED in (self.schema().metadata or {})

    @property
    def asked(self) -> str:
        """What to call the next rows, which are to be answered."""
        return str((self.schema().metadata or {})[ASKED], "utf-8")

    def segment(self) -> tuple[int, pa.RecordBatch]:
        """Return the number of the next segment, and its rows that are left."""
        return self._next - len(self._segments), self._segments[0]

    def next(self, rows: int) -> list[pa.RecordBatch]:
        """Return the next rows without taking them."""
        found = []
        for batch in self._segments:
            if rows <= 0:
                break
            found.append(batch.slice(0, rows))
            rows -= found[-1].num_rows
        return found

    def take(self, rows: int) -> None:
        """Take rows: they are not returned again."""
        self.taken += rows
        while rows:
            batch = self._segments.popleft()
            used = min(rows, batch.num_rows)
            if used < batch.num_rows:
                self._segments.appendleft(batch.slice(used))
            rows -= used
            self.last = batch.slice(used - 1, 1)


class StreamRows(Chunks):
    """Some rows of a stream, as what batches are made of."""

    def __init__(self, name: str, batches: Sequence[pa.RecordBatch], wanted: Sequence[str]) -> None:
        super().__init__()
        self.dataset = name
        self._found = [only(name, batch, wanted) for batch in batches]
        self.schema = self._found[0].schema
        self.specs = tensor_specs(self.schema)
        self.chunk_rows = tuple(batch.num_rows for batch in batches)
        self._numbers = {column: number for number, column in enumerate(self.schema.names)}

    def _batch(self, chunk: int) -> pa.RecordBatch:
        return self._found[chunk]


def only(name: str, batch: pa.RecordBatch, wanted: Sequence[str]) -> pa.RecordBatch:
    """Return the columns that are used; refuse rows that lack one."""
    missing = [column for column in wanted if column not in batch.schema.names]
    if missing:
        refuse_left_out(wanted, _left_out(batch.schema))
        raise DataError(
            f"rows that were pushed into {name!r} have no column {missing[0]!r}; they have "
            f"{', '.join(map(repr, batch.schema.names))}."
        )
    return batch.select(list(dict.fromkeys(wanted)))


def _left_out(schema: pa.Schema) -> dict[str, str]:
    known = (schema.metadata or {}).get(LEFT_OUT)
    return dict(json.loads(known)) if known else {}
