"""Writes the spool, batch by batch."""

from __future__ import annotations

import base64
import errno
import json
import re
import shutil
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.ledger import DatasetCounts
from gridflow._feed.normalize import FeedOptions, Findings, TensorSpec, normalise, tensor_specs
from gridflow._feed.store.reader import FORMAT, MANIFEST
from gridflow._feed.store.segment import Segment, lies_as
from gridflow.errors import DataError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType


#: Batches smaller than this are joined before they are written: each one costs the reader
#: some microseconds and the file some hundred bytes per column.
_SMALL_BYTES: Final = 1 << 20
_SMALL_ROWS: Final = 4096
#: A segment that isn't full is finished after so many seconds, or this part of the time since the
#: first row: who waits for rows gets them soon, and hours of rows make no thousands of files.
_PACE_SECONDS: Final = 0.5
_PACE_PART: Final = 0.1
_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SpoolWriter:
    """Writes datasets, batch by batch.

    Parameters
    ----------
    directory
        Where; made when missing. What an earlier attempt left of a dataset is replaced.
    options
        The rule for nulls.
    segment_bytes : int, default 32 MiB
        Size at which a new segment is started.
    on_segment : callable, optional
        Called with the name of a dataset and its rows so far, each time that one of its segments
        can be read. With it the first rows are finished at once, and later ones every half second
        or less often. What a chunk is doesn't depend on it.
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
        if schema is not None and writer.schema is None:
            empty = pa.RecordBatch.from_arrays(
                [pa.array([], kind) for kind in schema.types], schema=schema
            )
            writer.unseen, _ = normalise(empty, dataset, self._options, None, writer.findings)

    def write(self, dataset: str, rows: pa.RecordBatch | Segment) -> None:
        """Append rows; a segment becomes one of the spool's as it is, if it has the form for it.

        Parameters
        ----------
        dataset : str
        rows : pyarrow.RecordBatch or Segment
            A segment's file lies on the disk of the spool, and is moved or deleted.

        Raises
        ------
        DataError
            When rows break a rule (see `gridflow._feed.normalize.normalise`), or the disk is full.
        """
        writer = self._writer(dataset)
        if isinstance(rows, Segment):
            writer.take_over(rows)
        else:
            writer.write(rows)

    def explaining(self) -> _disk_full_explained:
        """Return a block in which "no space left" is an error that tells what to do."""
        return _disk_full_explained(self._directory, 0)

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


@dataclass
class _Segment:
    file: str
    batches: list[int] = field(default_factory=list)
    bytes: int = 0


class _DatasetWriter:
    def __init__(
        self,
        dataset: str,
        directory: Path,
        options: FeedOptions,
        segment_bytes: int,
        on_segment: Callable[[str, int], None] | None,
    ) -> None:
        self._dataset = dataset
        self._directory = directory
        self._options = options
        self._segment_bytes = segment_bytes
        self._on_segment = on_segment
        self._pace = _Pace()
        self.schema: pa.Schema | None = None
        #: A batch without rows that tells the schema while no row has.
        self.unseen: pa.RecordBatch | None = None
        self.findings = Findings()
        self._rows_in = self._rows = self._dropped = 0
        self._segments: list[_Segment] = []
        self._sink: pa.OSFile | None = None
        self._file: pa.ipc.RecordBatchFileWriter | None = None
        self._small: list[pa.RecordBatch] = []
        self._small_rows = self._small_bytes = 0
        self._counts: DatasetCounts | None = None
        with _disk_full_explained(directory, 0):
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)

    def take_over(self, segment: Segment) -> None:
        found: list[pa.RecordBatch] = []
        expected = self.schema
        for batch in segment.batches:
            found.append(self._normalised(batch, expected))
            if found[-1].num_rows:  # else nothing tells the length of arrays
                expected = found[-1].schema
        is_fit = all(map(_is_view, found, segment.batches))
        if not is_fit or expected is None or len(found[0].schema) != len(expected):
            for batch in found:
                self._write(batch)
            segment.delete()
            return
        self._flush_small()
        with _disk_full_explained(self._directory, segment.nbytes):
            self._end_segment()
            self.schema = expected
            rows = [batch.num_rows for batch in found]
            new = _Segment(f"{len(self._segments):05d}.arrow", rows, segment.nbytes)
            segment.path.rename(self._directory / new.file)
            self._segments.append(new)
            self._rows += sum(rows)
            self._announce()

    def write(self, batch: pa.RecordBatch) -> None:
        self._write(self._normalised(batch, self.schema))

    def _normalised(self, batch: pa.RecordBatch, expected: pa.Schema | None) -> pa.RecordBatch:
        self._rows_in += batch.num_rows
        batch, dropped = normalise(batch, self._dataset, self._options, expected, self.findings)
        self._dropped += dropped
        return batch

    def _write(self, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        if not rows:
            self.unseen = self.unseen or batch
            return
        if self.schema is None:
            self.schema = batch.schema
        elif len(self.schema) > len(batch.schema):
            # A column is left out from now on: a file has one schema.
            self._flush_small()
            with _disk_full_explained(self._directory, 0):
                self._end_segment()
            self.schema = batch.schema
        self._rows += rows
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
            self._append(batch, self._small_bytes)
            self._small, self._small_rows, self._small_bytes = [], 0, 0

    def _append(self, batch: pa.RecordBatch, size: int) -> None:
        with _disk_full_explained(self._directory, size):
            if self._file is None:
                segment = _Segment(f"{len(self._segments):05d}.arrow")
                self._sink = pa.OSFile(str(self._directory / f"{segment.file}.tmp"), "wb")
                self._file = pa.ipc.new_file(self._sink, self.schema)
                self._segments.append(segment)
            self._file.write_batch(batch)
            segment = self._segments[-1]
            segment.batches.append(batch.num_rows)
            segment.bytes += size
            is_due = self._on_segment is not None and self._pace.is_due()
            if segment.bytes >= self._segment_bytes or is_due:
                self._end_segment()

    def _end_segment(self) -> None:
        if self._file is None or self._sink is None:
            return
        self._file.close()
        self._sink.close()
        self._file = self._sink = None
        path = self._directory / self._segments[-1].file
        path.with_name(f"{path.name}.tmp").rename(path)
        self._announce()

    def _announce(self) -> None:
        if self._on_segment is not None:
            self._write_manifest(is_complete=False)
            self._pace.note()
            readable = sum(sum(segment.batches) for segment in self._segments)
            self._on_segment(self._dataset, readable)

    def _write_manifest(self, *, is_complete: bool) -> None:
        schema = self.schema
        if schema is None and self.unseen is not None:
            schema = self.unseen.schema
        encoded = None
        if schema is not None:
            encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
        manifest = {
            "format": FORMAT,
            "complete": is_complete,
            **asdict(self._counted()),
            "schema": encoded,
            "left_out": self.findings.left_out,
            "segments": [asdict(segment) for segment in self._segments],
        }
        path = self._directory / f"{MANIFEST}.tmp"
        path.write_text(json.dumps(manifest))
        path.rename(self._directory / MANIFEST)

    def _counted(self) -> DatasetCounts:
        nulls = dict(self.findings.nulls)
        return DatasetCounts(self._rows_in, self._rows, self._dropped, nulls=nulls)

    def close(self) -> DatasetCounts:
        if self._counts is None:
            self._flush_small()
            with _disk_full_explained(self._directory, 0):
                self._end_segment()
                self._write_manifest(is_complete=True)
            self._counts = self._counted()
        return self._counts

    def abort(self) -> None:
        # Not the IPC writer: it would still write a footer, which fails again on a full disk.
        if self._sink is not None:
            self._sink.close()
        self._file = self._sink = None
        self._small = []


def _is_view(batch: pa.RecordBatch, of: pa.RecordBatch) -> bool:
    """Return whether all columns of a batch are columns of another, as they lie there."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        place = of.schema.get_field_index(name)
        if place < 0 or not batch.schema.field(name).equals(of.schema.field(place), True):
            return False
        if not lies_as(column, of.column(place)):
            return False
    return bool(batch.num_rows == of.num_rows > 0)


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


class _disk_full_explained:  # noqa: N801 - used like a function
    """Turn "no space left" into an error that tells what to do."""

    def __init__(self, directory: Path, needed: int) -> None:
        self._directory = directory
        self._needed = needed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not (isinstance(error, OSError) and error.errno in _DISK_FULL):
            return
        place = self._directory
        while not place.exists() and place != place.parent:
            place = place.parent
        free = shutil.disk_usage(place).free
        raise DataError(
            f"the spool in {self._directory} can't grow: {error.strerror or error}. The next "
            f"{self._needed / 2**20:.1f} MiB were to be written, {free / 2**20:.1f} MiB are free "
            f"there. Give a larger disk with Spool(dir=…), or by spark.local.dir; the spool needs "
            f"room for all rows of its rank, uncompressed."
        ) from error
