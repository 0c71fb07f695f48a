"""How far an epoch may go while rows are still arriving. Pure, except for waiting.

All ranks run equal steps, but their number isn't known yet. What is known about a dataset only
grows: ``certain``, the rows that every rank can read, and at the end the counts. It follows that

* before the end, ``certain // batch_size - 1`` steps may be made. With ``tail="repeat"``, ranks
  whose rows are complete don't count, because they repeat theirs;
* at the end, the epoch has the usual number of steps (`gridflow._feed.plan.epochs.steps_for`).

The former never exceeds the latter: counts are at least as high as the certain rows, and with any
tail there are at least as many steps as the shortest rank has full batches (``repeat``: as the
longest has). One batch is held back, so that the last step is made when it is known to be the last.

Ranks learn of this at different times and needn't agree: a step that one rank may make, all others
may make once they learn of it. The content of a batch doesn't depend on when it is made:

* ``repeat`` and ``drop``: the rows in order, as in an unshuffled epoch;
* ``spread``: full batches as long as the shortest rank has one to spare (`full_steps`), the
  remaining rows spread over the remaining steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from gridflow._feed.plan.epochs import BatchPlan, ChunkPiece, Window, steps_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._feed.plan.epochs import Tail

__all__ = [
    "ArrivingGrant",
    "FirstPlan",
    "FixedGrant",
    "Grant",
    "Standing",
    "first_plan",
    "full_steps",
    "granted",
]


@dataclass(frozen=True)
class Standing:
    """What is known about a dataset's rows.

    `certain`: Rows that can be read on every rank.
    `going_on`: The same for the ranks that are still receiving rows.
    `counts`: Rows of each rank, once all have arrived.
    `repeats`: Whether each rank has rows to repeat.
    """

    certain: int = 0
    going_on: int = 0
    counts: tuple[int, ...] | None = None
    repeats: bool = True


def granted(standing: Standing, batch_size: int, tail: Tail) -> int:
    """Return how many steps of the first epoch may be made."""
    if standing.counts is not None:
        return steps_for(standing.counts, batch_size, tail)
    rows = standing.going_on if tail == "repeat" else standing.certain
    return max(0, rows // batch_size - 1)


def full_steps(counts: Sequence[int], batch_size: int) -> int:
    """Return the number of full batches at the start of the first epoch with ``tail="spread"``."""
    return max(0, min(counts) // batch_size - 1)


@dataclass(frozen=True)
class FirstPlan:
    """Full batches, then the remaining rows spread over the remaining steps.

    `head`, `rest`: The plans of the first rows and of the rest.
    `chunk`, `row`: The start of the rest.
    """

    head: BatchPlan
    rest: BatchPlan
    chunk: int
    row: int

    @property
    def steps(self) -> int:
        """Batches in the epoch."""
        return self.head.steps + self.rest.steps

    @property
    def rows(self) -> int:
        return self.head.rows_fed + self.rest.rows

    @property
    def is_even(self) -> bool:
        """Whether all batches have the same size; the last ones may be smaller."""
        return False

    @property
    def rows_repeated(self) -> int:
        """Rows that the epoch feeds a second time or more often."""
        return self.rest.rows_repeated

    @property
    def rows_left_out(self) -> int:
        """Rows that the epoch doesn't use: none."""
        return 0

    def rows_before(self, batch: int) -> int:
        """Return how many rows the batches before this one hold."""
        behind = max(0, batch - self.head.steps)
        return self.head.rows_before(batch - behind) + self.rest.rows_before(behind)

    def windows(self, start_batch: int = 0) -> Iterator[Window]:
        """Yield the windows from ``start_batch`` on, see `BatchPlan.windows`."""
        yield from self.head.windows(min(start_batch, self.head.steps))
        for window in self.rest.windows(max(0, start_batch - self.head.steps)):
            pieces = tuple(self._moved(piece) for piece in window.pieces)
            first = window.first_batch + self.head.steps
            yield replace(window, first_batch=first, pieces=pieces)

    def _moved(self, piece: ChunkPiece) -> ChunkPiece:
        skipped = 0 if piece.chunk else self.row
        chunk, start, stop = piece.chunk + self.chunk, piece.start + skipped, piece.stop + skipped
        return ChunkPiece(chunk, start, stop, piece.at)


def first_plan(
    chunk_rows: Sequence[int],
    counts: Sequence[int],
    batch_size: int,
    tail: Tail,
    *,
    replicas: int = 1,
    window_rows: int = 65_536,
) -> BatchPlan | FirstPlan:
    """Return the plan of the first epoch of a rank, once the rows of all ranks have arrived.

    `chunk_rows`: Rows in each chunk of the rank's spool.
    `counts`: Rows of each rank.
    `batch_size`: Rows of the rank in a step.
    `tail`: {"spread", "repeat", "drop"}.
    `replicas`: Batches per step; see `gridflow._feed.dataset.source.Source`.
    `window_rows`: See `BatchPlan`.
    """
    steps, size = steps_for(counts, batch_size, tail), batch_size // replicas
    if tail != "spread":
        return BatchPlan(chunk_rows, size, steps * replicas, tail, window_rows=window_rows)
    full = full_steps(counts, batch_size)
    head = BatchPlan(chunk_rows, size, full * replicas, "drop", window_rows=window_rows)
    chunk, row = 0, full * batch_size
    while chunk < len(chunk_rows) and row >= chunk_rows[chunk]:
        row -= chunk_rows[chunk]
        chunk += 1
    left = list(chunk_rows[chunk:])
    if left:
        left[0] -= row
    spread = BatchPlan(left, size, (steps - full) * replicas, "spread", window_rows=window_rows)
    return FirstPlan(head, spread, chunk, row)


class Grant(ABC):
    """How far an epoch may go: whether there is another step, and whether it may be made.

    `is_fixed`: Whether the number of steps is known before the epoch begins.
    `are_complete`: Whether all rows of all ranks have arrived.
    """

    is_fixed: ClassVar[bool] = False
    are_complete: bool

    @abstractmethod
    def steps(self) -> int:
        """Return the steps of an epoch, once all rows have arrived."""

    @abstractmethod
    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an epoch has a step, once known; None if it times out."""

    @abstractmethod
    def steps_beyond(self, step: int, seconds: float) -> int | None:
        """Return how many steps may be made; None if all rows have arrived.

        Waits until there are more than given, or until the timeout.
        """


@dataclass(frozen=True)
class FixedGrant(Grant):
    """A fixed number of steps, for complete rows."""

    count: int
    is_fixed = are_complete = True

    def steps(self) -> int:
        return self.count

    def has_step(self, step: int, seconds: float | None = None) -> bool:
        del seconds
        return step < self.count

    def steps_beyond(self, step: int, seconds: float) -> None:
        """Return None: all rows have arrived."""


def _nothing() -> None:
    """Do nothing."""


class ArrivingGrant(Grant):
    """The grant of one dataset whose rows are still arriving.

    `look`: Returns the current `Standing`.
    `wait_for`: ``wait_for(condition, seconds)`` waits until the condition holds, or until the
        timeout, and returns whether it does; the standing changes while it waits.
    `batch_size`, `tail`: See `gridflow._feed.plan.epochs.steps_for`.
    `settled`: Called once all rows have arrived, whenever it matters; raises an error if they can't
        be used for training.
    `on_begun`: Called, possibly more than once, after the first step.
    """

    def __init__(
        self,
        look: Callable[[], Standing],
        wait_for: Callable[[Callable[[], bool], float | None], bool],
        *,
        batch_size: int,
        tail: Tail,
        settled: Callable[[], None] = _nothing,
        on_begun: Callable[[], None] = _nothing,
    ) -> None:
        self._look, self._wait_for = look, wait_for
        self._batch_size, self._tail = batch_size, tail
        self._settled, self._on_begun = settled, on_begun

    @property
    def are_complete(self) -> bool:  # type: ignore[override]
        """Whether all rows of all ranks have arrived."""
        return self._look().counts is not None

    def counts(self) -> tuple[int, ...]:
        """Return the rows of each rank, once all have arrived."""
        self._wait_for(lambda: self.are_complete, None)
        self._settled()
        return self._look().counts or ()

    def steps(self) -> int:
        """Return the steps of an epoch, once all rows have arrived."""
        self.counts()
        return self._granted()

    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an epoch has a step, once known; None if it times out."""
        if not self._knows(step, seconds):
            return None
        return step < (self.steps() if self.are_complete else self._granted())

    def steps_beyond(self, step: int, seconds: float) -> int | None:
        """Return how many steps may be made; None if all rows have arrived.

        Waits until there are more than given, or until the timeout.
        """
        self._knows(step, seconds)
        if self.are_complete:
            self._settled()
            return None
        return self._granted()

    def _knows(self, step: int, seconds: float | None) -> bool:
        if step:
            self._on_begun()
        return self._wait_for(lambda: self.are_complete or step < self._granted(), seconds)

    def _granted(self) -> int:
        """Return how many steps may currently be made."""
        return granted(self._look(), self._batch_size, self._tail)
