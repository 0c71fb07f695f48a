"""Maps the rows of one rank: those of a spool for every epoch, those of a stream until taken."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._feed.ledger import DatasetCounts
from gridflow._feed.normalize import TensorSpec, tensor_specs, values_of
from gridflow._feed.selection import refuse_left_out
from gridflow._feed.store.segment import (
    ASKED,
    LEFT_OUT,
    Segment,
    decoded,
    formed,
    mapped,
    path_of,
    read,
)
from gridflow.errors import DataError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np

    from gridflow._feed.plan.epochs import Window

#: The format version of writer and reader.
MANIFEST: Final = "manifest.json"
FORMAT: Final = 3


class Chunks(ABC):
    """Columns of rows in *chunks*, record batches of one schema.

    `specs`: Element type and shape by column (see `tensor_specs`).
    """

    dataset: str
    schema: pa.Schema
    specs: dict[str, TensorSpec]
    chunk_rows: tuple[int, ...]

    #: All chunks can be read at the same cost at any time.
    chunks_together: Final = 0

    def __init__(self) -> None:
        #: Opening a chunk and finding a column by name take time for each column, so cache them.
        self._chunks: dict[int, pa.RecordBatch] = {}
        self._columns: dict[tuple[int, str], np.ndarray | pa.Array] = {}
        self._numbers: dict[str, int] = {}

    def follow(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Return the windows unchanged; mapped files need no reading ahead."""
        return windows

    @property
    def rows(self) -> int:
        """Rows that can be read."""
        return sum(self.chunk_rows)

    def row_bytes(self, columns: list[str] | None = None) -> int:
        """Return the approximate bytes per row of these columns, at least 1."""
        names = list(self.specs) if columns is None else columns
        if not self.chunk_rows:
            return 1
        batch = self._batch(0).select(names)
        return max(1, int(batch.nbytes) // self.chunk_rows[0])

    def column(self, chunk: int, name: str) -> np.ndarray | pa.Array:
        """Return one column of one chunk, by reference to the mapped file.

        Numbers are a read-only numpy array of shape (rows, ...), text and bytes an Arrow array (of
        lists, if a row holds several).
        """
        key = chunk, name
        column = self._columns.get(key)
        if column is None:
            column = self._chunk(chunk).column(self._numbers[name])
            column = self._columns[key] = values_of(column, self.specs[name])
        return column

    def matrix(self, chunk: int, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Return some rows of columns of numbers with the same type, as (rows, columns).

        Arrow copies all columns at once, which is much faster for many columns.
        """
        rows, numbers = self._chunk(chunk), self.numbers(names)
        # Selecting and slicing thousands of columns takes as long as copying them.
        if numbers != list(range(rows.num_columns)):
            rows = rows.select(numbers)
        if stop - start < rows.num_rows:
            rows = rows.slice(start, stop - start)
        matrix: np.ndarray = rows.to_tensor().to_numpy()
        return matrix

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the positions of columns in the schema."""
        return [self._numbers[name] for name in names]

    def _chunk(self, chunk: int) -> pa.RecordBatch:
        batch = self._chunks.get(chunk)
        if batch is None:
            batch = self._chunks[chunk] = self._batch(chunk)
        return batch

    @abstractmethod
    def _batch(self, chunk: int) -> pa.RecordBatch: ...


class SpoolReader(Chunks):
    """Maps one dataset of a spool, once for all of a process's readers.

    Its rows are in *chunks*, the record batches of all segments in order.

    `directory`: The spool's folder, as passed to `SpoolWriter`.
    `dataset`: The name.
    `growing`: Whether to accept a dataset that is still growing; see `refresh`.
    `specs`: Element type and shape by column (see `tensor_specs`).
    `counts`: The writer's counts; the readable rows match them only if the dataset is complete.
    `is_complete`: Whether all rows have arrived.
    `left_out`: Columns that turned out not to be feedable, with the reason.
    Raises `InvalidArgument`: There is no such dataset, or its writer did not finish.
    """

    def __init__(self, directory: Path, dataset: str, *, growing: bool = False) -> None:
        super().__init__()
        self.dataset = dataset
        self._spool, self._directory = directory, directory / dataset
        self._growing = growing
        self.schema = pa.schema([])
        self._segments: dict[int, Segment] = {}
        self.refresh()

    def digest(self) -> str:
        """Return what tells these rows from others, and from the same ones in another order."""
        found = zlib.crc32(repr((self.chunk_rows, self.specs)).encode())
        for chunk in range(len(self.chunk_rows)):
            found = zlib.crc32(self._batch(chunk).serialize(), found)
        return f"{found:08x}"

    def refresh(self) -> None:
        """Update the view of the rows; chunks keep their numbers.

        Raises `InvalidArgument`: As in the constructor.
        """
        manifest = _manifest(self._directory)
        if manifest is None or not (manifest["complete"] or self._growing):
            found = sorted(path.parent for path in self._spool.glob(f"*/{MANIFEST}"))
            there = [path.name for path in found if (_manifest(path) or {}).get("complete")]
            raise InvalidArgument(
                f"there is no complete dataset {self.dataset!r} in the spool {self._spool}; it "
                f"has: {', '.join(there) or 'none'}.{did_you_mean(self.dataset, there)}"
            )
        self.is_complete: bool = manifest["complete"]
        self.left_out: dict[str, str] = manifest["left_out"]
        self.counts = DatasetCounts(
            manifest["rows_in"], manifest["rows"], manifest["dropped"], nulls=manifest["nulls"]
        )
        schema = pa.schema([])
        if manifest["schema"] is not None:
            schema = decoded(manifest["schema"])
        if schema != self.schema:  # a column was left out
            self._chunks.clear()
            self.schema = schema
        self.specs = tensor_specs(self.schema)
        self._places = [
            (segment["number"], i)
            for segment in manifest["segments"]
            for i in range(len(segment["batches"]))
        ]
        self.chunk_rows = tuple(
            rows for segment in manifest["segments"] for rows in segment["batches"]
        )
        self._numbers = {name: number for number, name in enumerate(self.schema.names)}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunks as Arrow record batches."""
        for chunk in range(len(self.chunk_rows)):
            yield self._batch(chunk)

    def _batch(self, chunk: int) -> pa.RecordBatch:
        number, index = self._places[chunk]
        segment = self._segments.get(number)
        if segment is None:
            segment = self._segments[number] = mapped(path_of(self._directory, number))
        # A file may have columns that were left out later, or be somebody else's.
        return formed(segment.batches[index], self.schema)


def _manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of a dataset, or None."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    if manifest["format"] != FORMAT:
        raise InvalidArgument(
            f"the spool in {directory} has format {manifest['format']}, but this version of "
            f"gridflow reads {FORMAT}: all processes of a job need the same version of gridflow."
        )
    return manifest


class StreamReader:
    """The rows of a stream that are there, from the first one that wasn't taken.

    `folder`: Of the segments.
    `first`: The segment to begin with.
    `skip`: Rows of it that were taken before.
    `found`, `taken`: Rows that were mapped since, and that were taken.
    """

    def __init__(self, name: str, folder: Path, first: int, skip: int = 0) -> None:
        self.dataset, self._folder = name, folder
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
        return sum(batch.num_rows for batch in self._segments)

    def look(self, segments: int) -> None:
        """Map what has come: all segments before this number."""
        while self._next < segments:
            batch = read(path_of(self._folder, self._next))
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
