"""Writes rows into segments: what a spool and a stream have in common."""

from __future__ import annotations

import contextlib
import enum
import shutil
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.ledger import DatasetCounts
from gridflow._feed.normalize import FeedOptions, Findings, normalise
from gridflow._feed.store import segment as files
from gridflow._feed.store.segment import Located, Segment
from gridflow._files.local import is_refusal
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Retention", "SegmentWriter", "WrittenSegment", "disk_explained"]

#: A link keeps the whole file: rows that are less of it than this part are copied, so that the
#: files that are kept are never larger than what they are counted as by more than this.
_LEAST_PART: Final = 5


class Retention(enum.Enum):
    """How long segments are kept; what to say where the disk can't take another one."""

    KEEP = (
        "the spool in {} can't grow",
        (
            "Choose a larger disk with Spool(dir=…) or spark.local.dir; the spool needs room for "
            "all rows of its rank, uncompressed."
        ),
    )
    UNTIL_TAKEN = (
        "pushed rows can't be stored in {}",
        "Choose a larger disk with Spool(dir=…), or set a smaller Spool(limit=…).",
    )


@dataclass
class WrittenSegment:
    """A segment of a folder: its number, the rows of each of its batches, and its size."""

    number: int
    batches: list[int] = field(default_factory=list)
    bytes: int = 0


class SegmentWriter:
    """Brings rows into the form that is fed, counts them, and writes them into segments.

    `dataset`: Its name, for errors.
    `folder`: Of the segments; made when missing. Where all are kept, what an earlier attempt left
        is replaced.
    `options`: The rule for nulls; None: rows stay as they come.
    `schema`: That of the last rows; None before the first.
    `segments` (deque of WrittenSegment): Those that are whole, and haven't been deleted.
    `next`: The number of the next one.
    `rows`: Rows that were written.
    """

    def __init__(
        self, dataset: str, folder: Path, options: FeedOptions | None, retention: Retention
    ) -> None:
        self.dataset, self.folder = dataset, folder
        self._options, self._retention = options, retention
        self.schema: pa.Schema | None = None
        self.findings = Findings()
        self.segments: deque[WrittenSegment] = deque()
        self.next = self.rows = self._rows_in = self._dropped = 0
        self._open: WrittenSegment | None = None
        self._sink: pa.OSFile | None = None
        self._file: pa.ipc.RecordBatchFileWriter | None = None
        with self._explained():
            if retention is Retention.KEEP and folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def counts(self) -> DatasetCounts:
        """What has come, and what became of it."""
        nulls = dict(self.findings.nulls)
        return DatasetCounts(self._rows_in, self.rows, self._dropped, nulls=nulls)

    def normalised(
        self, batch: pa.RecordBatch, expected: pa.Schema | None = None
    ) -> pa.RecordBatch:
        """Return rows in the form that is fed; by default that of the rows before them."""
        found, dropped = batch, 0
        if self._options is not None:
            found, dropped = normalise(
                batch, self.dataset, self._options, expected or self.schema, self.findings
            )
        self._rows_in += batch.num_rows
        self._dropped += dropped
        return found

    def append(self, batch: pa.RecordBatch, size: int) -> WrittenSegment:
        """Write rows in their form, so many bytes, into the segment that is open; return it."""
        with self._explained(size):
            if self._file is None:
                self._open = WrittenSegment(self.next)
                self._sink = pa.OSFile(str(self._path.with_suffix(".partial")), "wb")
                self._file = pa.ipc.new_file(self._sink, batch.schema)
            self._file.write_batch(batch)
        assert self._open is not None
        self._open.batches.append(batch.num_rows)
        self._open.bytes += size
        self.rows += batch.num_rows
        return self._open

    def end(self) -> bool:
        """Give the segment that is open its name; return whether one was."""
        if self._open is None or self._file is None or self._sink is None:
            return False
        with self._explained():
            self._file.close()
            self._sink.close()
            self._path.with_suffix(".partial").rename(self._path)
        self._add(self._open)
        self._open = self._sink = self._file = None
        return True

    def link(self, rows: Segment | Located, found: Sequence[pa.RecordBatch]) -> bool:
        """Make the file in which rows lie a segment, if they can be read there as they are found.

        Returns whether it is one now. Nothing has happened otherwise.
        """
        size = sum(batch.nbytes for batch in found)
        given = [rows.batch] if isinstance(rows, Located) else rows.batches
        if isinstance(rows, Located) and rows.size > _LEAST_PART * size:
            return False
        if not all(map(files.is_view, found, given)):
            return False
        self.end()
        part = self._path.with_suffix(files.PART)
        try:
            if isinstance(rows, Located):
                part.write_text(rows.part(found[0].schema))
            self._path.hardlink_to(rows.path)
        except OSError:  # another disk, one without links or room, or the feeder has ended
            part.unlink(missing_ok=True)
            return False
        self.rows += sum(batch.num_rows for batch in found)
        self._add(WrittenSegment(self.next, [batch.num_rows for batch in found], size))
        return True

    def delete_first(self) -> WrittenSegment:
        """Delete the oldest segment and return it; processes that have mapped it keep its data."""
        first = self.segments.popleft()
        path = files.path_of(self.folder, first.number)
        for each in (path, path.with_suffix(files.PART)):
            each.unlink(missing_ok=True)
        return first

    def abort(self) -> None:
        """Give up the segment that is open."""
        # Not the IPC writer: it would still write a footer, which fails again on a full disk.
        if self._sink is not None and self._open is not None:
            self._sink.close()
            self._path.with_suffix(".partial").unlink(missing_ok=True)
            self.rows -= sum(self._open.batches)
        self._open = self._sink = self._file = None

    @property
    def _path(self) -> Path:
        return files.path_of(self.folder, self.next)

    def _add(self, segment: WrittenSegment) -> None:
        self.segments.append(segment)
        self.next += 1

    @contextlib.contextmanager
    def _explained(self, needed: int = 0) -> Iterator[None]:
        try:
            with disk_explained(self.folder, self._retention, needed):
                yield
        except (OSError, DataError):
            self.abort()
            raise


@contextlib.contextmanager
def disk_explained(folder: Path, retention: Retention, needed: int = 0) -> Iterator[None]:
    """Turn "no space left" into an error that tells what to do."""
    try:
        yield
    except OSError as error:
        # Who pushes rows is told of any error; an agent that can't write fails with its own.
        if retention is Retention.KEEP and not is_refusal(error):
            raise
        place = folder
        while not place.exists() and place != place.parent:
            place = place.parent
        free = shutil.disk_usage(place).free
        what, instead = retention.value
        raise DataError(
            f"{what.format(folder)}: {error.strerror or error}. The next write "
            f"needs {needed / 2**20:.1f} MiB, and {free / 2**20:.1f} MiB are free. {instead}"
        ) from error
