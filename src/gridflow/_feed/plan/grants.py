"""How far an epoch may go whose rows haven't all arrived. Pure, but for the waiting.

All ranks make equal steps, and nobody knows yet how many. What is known of a dataset only grows:
``certain``, the rows that every rank can read, and at the end the counts. From these follows

* before the end: ``certain // batch_size - 1`` steps may be made. With ``tail="repeat"`` ranks
  whose rows are complete don't count, as they repeat theirs.
* at the end: the epoch has the steps of any other (`gridflow._feed.plan.epochs.steps_for`).

The former never exceeds the latter: counts are at least what was certain, and no tail makes fewer
steps than the shortest rank has full batches, ``repeat`` not fewer than the longest has. One batch
is held back, so the last step is made when it is known to be the last.

Ranks hear of this at different times, and needn't agree at any: a step that one rank may make, all
others may make once they hear of it. What is in a batch is the same whenever it was made:

* ``repeat`` and ``drop``: the rows in their order, as in an epoch that isn't shuffled;
* ``spread``: full batches as long as the shortest rank has one to spare (`full_steps`), the rest
  dealt out to the steps that are left.
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
    """What is known of a dataset's rows.

    Attributes
    ----------
    certain : int
        Rows that can be read on every rank.
    going_on : int
        The same of the ranks of which more rows are to come.
    counts : tuple of int or None
        Rows of each rank, once all have arrived.
    repeats : bool
        Whether each rank has rows that it can repeat.
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
    """Return how many steps begin the first epoch with full batches under ``tail="spread"``."""
    return max(0, min(counts) // batch_size - 1)


@dataclass(frozen=True)
class FirstPlan:
    """Full batches, then the rest of the rows spread over the rest of the steps.

    Attributes
    ----------
    head, rest : BatchPlan
        Of the first rows, and of those after them.
    chunk, row : int
        Where the rest begins.
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
        """Rows of the rank."""
        return self.head.rows_fed + self.rest.rows

    @property
    def is_even(self) -> bool:
        """Whether all batches have the same size; the rest's may be smaller."""
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

    Parameters
    ----------
    chunk_rows : sequence of int
        Rows in each chunk of the rank's spool.
    counts : sequence of int
        Rows of each rank.
    batch_size : int
        Rows of the rank in a step.
    tail : {"spread", "repeat", "drop"}
    replicas : int, default 1
        Batches in a step; see `gridflow._feed.dataset.source.Source`.
    window_rows : int
        See `BatchPlan`.
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
    """How far an epoch may go: whether a step of it may be made, and whether there is one.

    Attributes
    ----------
    is_fixed : bool
        Whether the steps of an epoch are known before it begins.
    are_complete : bool
        Whether all rows of all ranks have arrived.
    """

    is_fixed: ClassVar[bool] = False
    are_complete: bool

    @abstractmethod
    def steps(self) -> int:
        """Return the steps of an epoch, when all rows have arrived."""

    @abstractmethod
    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an epoch has a step, as soon as that is known; None if time is over."""

    @abstractmethod
    def steps_beyond(self, step: int, seconds: float) -> int | None:
        """Return how many steps may be made; None if all rows have arrived.

        Waits until there are more than those given, or time is over.
        """


@dataclass(frozen=True)
class FixedGrant(Grant):
    """Of rows that are all there: so many steps."""

    count: int
    is_fixed = are_complete = True

    def steps(self) -> int:
        """Return the steps."""
        return self.count

    def has_step(self, step: int, seconds: float | None = None) -> bool:
        """Return whether there is a step."""
        del seconds
        return step < self.count

    def steps_beyond(self, step: int, seconds: float) -> None:
        """Return None: no rows are waited for."""


def _nothing() -> None:
    """Do nothing."""


class ArrivingGrant(Grant):
    """What one dataset of a training process knows of the rows that still arrive.

    Parameters
    ----------
    look : callable
        Returns the present `Standing`.
    wait_for : callable
        ``wait_for(condition, seconds)`` waits until the condition holds, or time is over, and
        returns whether it does; the standing changes while it waits.
    batch_size, tail
        See `gridflow._feed.plan.epochs.steps_for`.
    settled : callable
        Called once all rows have arrived, each time that it matters: raises if they turned out to
        be none that can be trained on.
    on_begun : callable
        Called, maybe more than once, when the first step has been made.
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
        """Return the rows of each rank, when all have arrived."""
        self._wait_for(lambda: self.are_complete, None)
        self._settled()
        return self._look().counts or ()

    def steps(self) -> int:
        """Return the steps of an epoch, when all rows have arrived."""
        self.counts()
        return self._granted()

    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an epoch has a step, as soon as that is known; None if time is over."""
        if not self._knows(step, seconds):
            return None
        return step < (self.steps() if self.are_complete else self._granted())

    def steps_beyond(self, step: int, seconds: float) -> int | None:
        """Return how many steps may be made; None if all rows have arrived.

        Waits until there are more than those given, or time is over.
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
        """Return how many steps may be made by what is known now."""
        return granted(self._look(), self._batch_size, self._tail)
