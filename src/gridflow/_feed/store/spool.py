"""Writes the spool, batch by batch."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from gridflow._feed.normalize import FeedOptions, TensorSpec, tensor_specs
from gridflow._feed.store.reader import FORMAT, MANIFEST
from gridflow._feed.store.segment import Segment, encoded
from gridflow._feed.store.writer import Retention, SegmentWriter, disk_explained
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from gridflow._feed.ledger import DatasetCounts


#: Batches smaller than this are joined before they are written: each one costs the reader
#: some microseconds and the file some hundred bytes per column.
_SMALL_BYTES: Final = 1 << 20
_SMALL_ROWS: Final = 4096
#: A segment that isn't full is finished after so many seconds, or this part of the time since the
#: first row: who waits for rows gets them soon, and hours of rows make no thousands of files.
_PACE_SECONDS: Final = 0.5
_PACE_PART: Final = 0.1


class SpoolWriter:
    """Writes datasets, batch by batch.

    `directory`: Where; made when missing. What an earlier attempt left of a dataset is replaced.
    `options`: The rule for nulls.
    `segment_bytes`: Size at which a new segment is started.
    `on_segment`: Called with the name of a dataset and its rows so far, each time that one of its
        segments can be read. With it the first rows are finished at once, and later ones every half
        second or less often. What a chunk is doesn't depend on it.
    """

    def __init__(
        self,
        directory: Path,
        options: FeedOptions | None = None,
        segment_bytes: int = 32 << 20,
        on_segment: Callable[[str, int], None] | None = None,
    ) -> None:
        if segment_bytes < 1:
            raise InvalidArgument(f"segment_bytes must be positive, got {segment_bytes}.")
        self._directory = directory
        self._options = options or FeedOptions()
        self._segment_bytes = segment_bytes
        self._on_segment = on_segment
        self._datasets: dict[str, _DatasetWriter] = {}

    def declare(self, dataset: str, schema: pa.Schema | None = None) -> None:
        """Make sure that the dataset exists even if no row of it ever comes.

        ``schema`` is that of the rows as they would arrive, when it is known.
        """
        writer = self._writer(dataset)
        if schema is not None:
            writer.declare(schema)

    def write(self, dataset: str, rows: pa.RecordBatch | Segment) -> None:
        """Append rows; a segment becomes one of the spool's as it is, if it has the form for it.

        `rows`: A segment's file is linked, if it lies on the spool's disk, and deleted.
        Raises `DataError`: When rows break a rule (see `gridflow._feed.normalize.normalise`), or
            the disk is full.
        """
        writer = self._writer(dataset)
        if isinstance(rows, Segment):
            writer.take_over(rows)
        else:
            writer.write(rows)

    def explaining(self) -> AbstractContextManager[None]:
        """Return a block in which "no space left" is an error that tells what to do."""
        return disk_explained(self._directory, Retention.KEEP)

    def close(self) -> dict[str, DatasetCounts]:
        """Finish all datasets; only then can they be read."""
        return {name: writer.close() for name, writer in self._datasets.items()}

    @property
    def left_out(self) -> dict[str, dict[str, str]]:
        """Columns that turned out not to be feedable, and why, by dataset."""
        return {name: dict(writer.findings.left_out) for name, writer in self._datasets.items()}

    @property
    def specs(self) -> dict[str, dict[str, TensorSpec]]:
        """Types and shapes of columns, by dataset, of those that have had rows."""
        return {
            name: tensor_specs(writer.schema)
            for name, writer in self._datasets.items()
            if writer.schema is not None
        }

    def abort(self) -> None:
        """Close the files as they are: the datasets stay unfinished."""
        for writer in self._datasets.values():
            writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _writer(self, dataset: str) -> _DatasetWriter:
        writer = self._datasets.get(dataset)
        if writer is None:
            if not re.fullmatch(r"\w+", dataset):
                raise InvalidArgument(
                    f"a dataset's name is made of letters, digits and _, got {dataset!r}."
                )
            writer = _DatasetWriter(
                dataset,
                self._directory / dataset,
                self._options,
                self._segment_bytes,
                self._on_segment,
            )
            self._datasets[dataset] = writer
        return writer


class _DatasetWriter(SegmentWriter):
    """Keeps the rows of a dataset: few large batches, and a manifest that names their segments."""

    def __init__(
        self,
        dataset: str,
        folder: Path,
        options: FeedOptions,
        segment_bytes: int,
        on_segment: Callable[[str, int], None] | None,
    ) -> None:
        super().__init__(dataset, folder, options, Retention.KEEP)
        self._segment_bytes = segment_bytes
        self._on_segment = on_segment
        self._pace = _Pace()
        #: A batch without rows that tells the schema while no row has.
        self.unseen: pa.RecordBatch | None = None
        self._small: list[pa.RecordBatch] = []
        self._small_rows = self._small_bytes = 0
        self._is_closed = False

    def declare(self, schema: pa.Schema) -> None:
        if self.schema is None:
            empty = [pa.array([], kind) for kind in schema.types]
            self.unseen = self.normalised(pa.RecordBatch.from_arrays(empty, schema=schema))

    def take_over(self, segment: Segment) -> None:
        found: list[pa.RecordBatch] = []
        expected = self.schema
        for batch in segment.batches:
            found.append(self.normalised(batch, expected))
            if found[-1].num_rows:  # else nothing tells the length of arrays
                expected = found[-1].schema
        if self.link(segment, found):
            self.schema = expected
            self._announce()
        else:
            for batch in found:
                self._write(batch)
        segment.delete()

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(self.normalised(batch))

    def _write(self, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        if not rows:
            self.unseen = self.unseen or batch
            return
        if self.schema is None:
            self.schema = batch.schema
        elif len(self.schema) > len(batch.schema):
            # A column is left out from now on: a file has one schema.
            self.end()
            self.schema = batch.schema
        size = batch.nbytes
        if size >= _SMALL_BYTES or rows >= _SMALL_ROWS:
            self._flush_small()
            self._append(batch, size)
            return
        self._small.append(batch)
        self._small_rows += rows
        self._small_bytes += size
        if self._small_bytes >= _SMALL_BYTES or self._small_rows >= _SMALL_ROWS:
            self._flush_small()

    def _flush_small(self) -> None:
        if self._small:
            batch = pa.concat_batches(self._small) if len(self._small) > 1 else self._small[0]
            size = self._small_bytes
            self._small, self._small_rows, self._small_bytes = [], 0, 0
            self._append(batch, size)

    def _append(self, batch: pa.RecordBatch, size: int) -> None:
        segment = self.append(batch, size)
        is_due = self._on_segment is not None and self._pace.is_due()
        if segment.bytes >= self._segment_bytes or is_due:
            self.end()

    def end(self) -> bool:
        self._flush_small()
        was_open = super().end()
        if was_open:
            self._announce()
        return was_open

    def _announce(self) -> None:
        if self._on_segment is not None:
            self._write_manifest(is_complete=False)
            self._pace.note()
            self._on_segment(self.dataset, self.rows)

    def _write_manifest(self, *, is_complete: bool) -> None:
        schema = self.schema
        if schema is None and self.unseen is not None:
            schema = self.unseen.schema
        manifest = {
            "format": FORMAT,
            "complete": is_complete,
            **asdict(self.counts),
            "schema": None if schema is None else encoded(schema),
            "left_out": self.findings.left_out,
            "segments": [asdict(segment) for segment in self.segments],
        }
        path = self.folder / MANIFEST
        with self._explained():
            path.with_suffix(".partial").write_text(json.dumps(manifest))
            path.with_suffix(".partial").rename(path)

    def close(self) -> DatasetCounts:
        if not self._is_closed:
            self.end()
            self._write_manifest(is_complete=True)
            self._is_closed = True
        return self.counts

    def abort(self) -> None:
        super().abort()
        self._small = []


class _Pace:
    """Says when those who wait for rows are to get what there is."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0

    def is_due(self) -> bool:
        if self._first is None:
            return True
        now = time.monotonic()
        return now - self._last >= max(_PACE_SECONDS, (now - self._first) * _PACE_PART)

    def note(self) -> None:
        self._last = time.monotonic()
        self._first = self._last if self._first is None else self._first
