"""The rows of a stream on one rank: each once, in bounded space, until they are read.

A feeder's task sends the rows of one partition with their positions. A retried task first asks all
agents which positions have arrived (`StreamStore.begin`), and sends the others; earlier attempts
are rejected from then on. So no row is lost or duplicated, as long as a partition's rows come in
the same order each time.

Rows lie in segments (`gridflow._feed.store.segment`), in the order in which they came from all
feeders. While `limit` bytes lie there, feeders wait. A segment is deleted when all its rows were
taken; where checkpoints are made in the middle of an epoch, when the two last ones that the driver
has no longer need them.
"""

from __future__ import annotations

import functools
import json
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from gridflow._feed.push.exactly_once import Partitions, Superseded
from gridflow._feed.store.segment import ASKED, LEFT_OUT, Located, size_of
from gridflow._feed.store.writer import Retention, SegmentWriter
from gridflow._feed.types import leaf_type
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._feed.ledger import DatasetCounts
    from gridflow._feed.normalize import FeedOptions
    from gridflow._feed.push.exactly_once import Partition
    from gridflow._spec.place import Place

__all__ = ["Mark", "Marks", "StreamStore"]

#: Number of section ends to remember.
_ENDS: Final = 4


def _element(kind: pa.DataType) -> pa.DataType:
    """Return the element type of a column, whatever its form."""
    kind = leaf_type(kind)
    # Time zone and unit don't change how a timestamp is fed.
    return pa.timestamp("us") if pa.types.is_timestamp(kind) else kind


def _batch_of(rows: pa.RecordBatch | Located) -> pa.RecordBatch:
    return rows.batch if isinstance(rows, Located) else rows


class StreamStore:
    """The rows of a stream that have arrived at this rank.

    `folder`: Folder of the segments; created if missing.
    `options`: The rule for nulls; None: rows are kept as they are sent, whatever their types, and
        any of them may have to be answered.
    `limit`: Maximum bytes stored; exceeded only if training would otherwise wait forever.
    `on_change`: Called in a feeder's thread whenever rows have arrived.
    `keeps`: Whether rows are kept until a checkpoint covers them.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        options: FeedOptions | None,
        limit: int,
        on_change: Callable[[], None],
        *,
        keeps: bool = False,
    ) -> None:
        self.name, self.folder = name, folder
        self._limit, self._on_change = limit, on_change
        self._is_as_sent = options is None
        self._writer = SegmentWriter(name, folder, options, Retention.UNTIL_TAKEN)
        self._changed = threading.Condition()
        self._partitions = Partitions()
        self._bytes = 0
        self._types: dict[str, pa.DataType] = {}
        #: Rows that were taken in all, and those in generations that have ended.
        self._taken = self._before = 0
        self._freed = 0
        self._keeps = keeps
        self._marks = Marks()
        #: Rows that had arrived at the ends of sections.
        self._ends: dict[int, int] = {}
        self._sections = 0
        #: The first section of the generation.
        self.first_section = 0
        self._batch_size = 1
        self._is_open, self._is_closed = True, False
        self._is_asked: bool | None = None

    # For feeders ---------------------------------------------------------------------------------

    def begin(self, feed: str, partition: int, attempt: int) -> dict[str, Any]:
        """Start an attempt to send a partition; earlier ones are rejected from now on.

        Returns: ``ranges``, the positions that have arrived; ``pending``, rows waiting here;
            ``ended``.
        Raises `Superseded`: A later attempt has started.
        """
        with self._changed:
            self._check_open()
            known = self._partitions[feed, partition]
            known.begin(attempt)
            self._changed.notify_all()
            return {**self._standing(), "ranges": [list(each) for each in known.ranges]}

    def put(
        self,
        feed: str,
        partition: int,
        attempt: int,
        first: int,
        rows: pa.RecordBatch | Located,
        *,
        asked: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Store rows of a partition, once there is room.

        `first`: The position of the first row in its partition.
        `rows`: A file's rows are stored as a link to it if possible.
        `asked`: The name of rows that must be answered.
        `timeout`: How many seconds to wait while no row is taken.
        Returns: ``pending`` and ``ended``. If the stream had ended, the rows were not stored.
        Raises `Superseded`: A later attempt has started.
        Raises `DataError`: The rows break a rule, or the disk is full.
        Raises `TimeoutError`: See `timeout`.
        """
        size = size_of(_batch_of(rows))
        with self._changed:
            known = self._partitions[feed, partition]
            self._await(lambda: self._has_room(size), known, attempt, timeout)
            if self._is_open:
                self._check_kind(is_asked=asked is not None)
                for begin, end in known.ranges.missing(first, first + rows.num_rows):
                    self._store(rows.slice(begin - first, end - begin), asked)
                    known.ranges.add(begin, end)
                    known.end = self._writer.rows
            standing = self._standing()
        self._on_change()
        return standing

    def settle(
        self, feed: str, partition: int, attempt: int, timeout: float | None
    ) -> dict[str, Any]:
        """Wait until all rows of a partition were taken, or no more are wanted.

        Raises `Superseded`, `TimeoutError`: As `put`.
        """
        with self._changed:
            known = self._partitions[feed, partition]
            self._await(lambda: self._taken >= known.end, known, attempt, timeout)
            return self._standing()

    def open(self) -> None:
        """Accept rows again."""
        with self._changed:
            self._is_open = True

    def end(self) -> None:
        """Accept no more rows."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def close(self) -> None:
        """Make all feeders fail, because the agent ends."""
        with self._changed:
            self._is_open, self._is_closed = False, True
            self._changed.notify_all()

    def _await(
        self,
        is_ready: Callable[[], bool],
        known: Partition,
        attempt: int,
        timeout: float | None,
    ) -> None:
        """Wait until an attempt may go on, or the stream has ended."""

        def goes_on(taken: int) -> bool:
            is_over = not self._is_open or known.attempt > attempt
            return is_over or self._taken > taken or is_ready()

        while self._is_open and known.attempt <= attempt and not is_ready():
            if not self._changed.wait_for(functools.partial(goes_on, self._taken), timeout):
                raise TimeoutError(f"the function read no row for {timeout:g} seconds")
        self._check_open()
        known.check(attempt)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Superseded("the agent ends.")

    def _has_room(self, size: int) -> bool:
        if self._bytes + size <= self._limit:
            return True
        # Whoever trains may wait for these rows to fill a batch: nothing would ever be taken.
        starves = self._writer.rows - self._taken < self._batch_size
        if starves and self._keeps:
            self._keeps = False  # nor would there be a checkpoint that needs kept rows
            self._free()
        return starves

    def _check_kind(self, *, is_asked: bool) -> None:
        if not self._is_as_sent and self._is_asked not in {None, is_asked}:
            raise DataError(
                "a job takes rows either from feed(), for training, or from infer(), for "
                "prediction, but not both."
            )
        self._is_asked = is_asked

    def _standing(self) -> dict[str, Any]:
        return {"pending": self._writer.rows - self._taken, "ended": not self._is_open}

    def _check_types(self, schema: pa.Schema) -> None:
        for field in schema:
            kind = _element(field.type)
            known = self._types.setdefault(field.name, kind)
            if known != kind:
                raise DataError(
                    f"the column {field.name!r} was {known} before and is now {kind}: cast it, so "
                    "that all rows of the stream have the same type."
                )

    def _store(self, rows: pa.RecordBatch | Located, asked: str | None) -> None:
        batch, writer = _batch_of(rows), self._writer
        if not self._is_as_sent:
            self._check_types(batch.schema)
        left_out = writer.findings.left_out
        told = (batch.schema.metadata or {}).get(LEFT_OUT)
        if told is not None:  # whoever sends the rows knows of columns that can't be fed
            left_out.update(json.loads(told))
        batch = writer.normalised(batch)
        if not batch.num_rows:
            return
        if not self._is_as_sent:
            writer.schema = batch.schema
        facts: dict[bytes, Any] = {} if asked is None else {ASKED: asked}
        if left_out:  # whoever wants such a column is told why it isn't there
            facts[LEFT_OUT] = json.dumps(left_out)
        batch = batch.replace_schema_metadata(facts) if facts else batch
        if not (isinstance(rows, Located) and writer.link(rows, [batch])):
            writer.append(batch, size_of(batch) if self._is_as_sent else batch.nbytes)
            writer.end()
        self._bytes += writer.segments[-1].bytes

    # For the agent -------------------------------------------------------------------------------

    def needs(self, batch_size: int) -> None:
        """Set how many rows training needs at once: they are accepted whatever the limit."""
        with self._changed:
            self._batch_size = batch_size
            self._changed.notify_all()

    def take(self, rows: int) -> None:
        """Set the rows read since the generation began; delete what isn't needed."""
        with self._changed:
            self._taken = max(self._taken, min(self._before + rows, self._writer.rows))
            self._free()

    def begin_with(self, sections: int) -> None:
        """Start with a section after this many others, whose rows didn't come here."""
        with self._changed:
            self._keeps = True
            self._sections = self.first_section = sections
            self._marks.begin_with(sections)

    def end_sections(self, sections: int) -> None:
        """End this number of sections in total with the rows so far; keep rows by section.

        A restarted training begins at the start of a section.
        """
        with self._changed:
            self._keeps = True
            while self._sections < sections:
                self._ends[self._sections] = self._writer.rows
                self._sections += 1
                self._ends.pop(self._sections - _ENDS, None)

    @property
    def ends(self) -> dict[int, int]:
        """The last ended sections of this generation, with the rows at their ends."""
        with self._changed:
            return {
                section: rows - self._before
                for section, rows in self._ends.items()
                if section >= self.first_section
            }

    def mark(self, place: Place, rows: int, section: int) -> None:
        """Record how many rows since the generation began a checkpoint covers."""
        with self._changed:
            self._marks.made(Mark(place, self._before + rows, section))

    def committed(self, place: Place) -> None:
        """Record that the driver has a checkpoint; delete what only older ones need."""
        with self._changed:
            self._marks.arrived(place)
            self._free()

    def begin_generation(self, resume: Place | None) -> int:
        """Start a generation with the rows that a checkpoint, or none, doesn't cover.

        Returns: Rows that are needed again but have been deleted.
        """
        with self._changed:
            mark = self._marks.covered(resume, Mark(resume, self._taken, self._sections))
            self.first_section = mark.section
            self._before = self._taken = max(mark.rows, self._freed)
            self._marks.go_on(resume, mark, self._before)
            return self._before - mark.rows

    def _free(self) -> None:
        """Delete the segments that won't be read again."""
        needed = self._marks.oldest.rows if self._keeps else self._taken
        segments = self._writer.segments
        while segments and self._freed + sum(segments[0].batches) <= needed:
            deleted = self._writer.delete_first()
            self._freed += sum(deleted.batches)
            self._bytes -= deleted.bytes
        self._changed.notify_all()

    @property
    def before(self) -> int:
        """Rows of earlier generations."""
        with self._changed:
            return self._before

    @property
    def rows(self) -> int:
        """Rows that have arrived since the generation began, or hadn't been read before."""
        with self._changed:
            return self._writer.rows - self._before

    @property
    def segments(self) -> tuple[int, int, int]:
        """The first existing segment, the number after the last, and the rows to skip."""
        with self._changed:
            segments, stop = self._writer.segments, self._writer.next
            first = segments[0].number if segments else stop
            return first, stop, max(0, self._before - self._freed)

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the last rows that have come; None before the first."""
        return self._writer.schema

    @property
    def counts(self) -> DatasetCounts:
        with self._changed:
            return self._writer.counts


# Which rows of a stream the checkpoints cover on one rank. Pure.
#
# A checkpoint may never arrive at the driver. So each is remembered until the driver has confirmed
# two later ones: a group can only resume from these.

#: Checkpoints that the driver keeps: the newest and the previous one.
_KEPT: Final = 2


class Mark(NamedTuple):
    """A checkpoint, the rows that it covers, and the section that comes next."""

    place: Place | None
    rows: int
    section: int


class Marks:
    """The checkpoints from which a group may resume.

    Examples
    --------
    >>> marks = Marks()
    >>> marks.made(Mark((0, 0, 1), 10, 0))
    >>> marks.made(Mark((0, 0, 2), 20, 0))
    >>> marks.arrived((0, 0, 1))
    >>> marks.covered((0, 0, 1), Mark(None, 25, 0)).rows  # training since then is lost
    10
    """

    def __init__(self) -> None:
        self._beginning = Mark(None, 0, 0)
        self._made: list[Mark] = []
        self._arrived: list[Place] = []

    def begin_with(self, section: int) -> None:
        """Record the first section of the stream here."""
        self._beginning = Mark(None, 0, section)

    def made(self, mark: Mark) -> None:
        """Record a new checkpoint."""
        self._made.append(mark)

    def arrived(self, place: Place) -> None:
        """Record that the driver has a checkpoint; forget those that it no longer keeps."""
        self._arrived = sorted({*self._arrived, place})[-_KEPT:]
        known = [at for at, mark in enumerate(self._made) if mark.place == self._arrived[0]]
        if len(self._arrived) == _KEPT and known:
            del self._made[: known[-1]]

    @property
    def oldest(self) -> Mark:
        """The oldest checkpoint from which a group may resume, or the beginning."""
        is_known = len(self._arrived) == _KEPT and self._made[:1]
        if is_known and self._made[0].place == self._arrived[0]:
            return self._made[0]
        return self._beginning

    def covered(self, resume: Place | None, now: Mark) -> Mark:
        """Return what a checkpoint covers; None stands for no checkpoint.

        `now`: What has been read so far.
        """
        if resume is None:
            return self._beginning
        for mark in reversed(self._made):
            if mark.place == resume:
                return mark
        older = [mark for mark in self._made if mark.place is not None and mark.place < resume]
        if older or resume in self._arrived:
            # This rank's process ended before it could say what the checkpoint covers. Assume
            # everything that it had read; otherwise it would train on some rows twice.
            return now
        return self._beginning  # made before rows of this stream arrived here

    def go_on(self, resume: Place | None, mark: Mark, rows: int) -> None:
        """Forget checkpoints after `resume`, from which training resumes with this many rows."""
        self._made = [each for each in self._made if each.rows <= mark.rows]
        self._arrived = [each for each in self._arrived if resume is not None and each < resume]
        if resume is not None:
            self._made.append(Mark(resume, rows, mark.section))
            self._arrived = [*self._arrived, resume][-_KEPT:]
