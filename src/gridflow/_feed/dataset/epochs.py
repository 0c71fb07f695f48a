"""Epochs over a rank's rows, complete or still arriving."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gridflow._feed.dataset.assemble import assemble, window_rows_for
from gridflow._feed.dataset.source import Source
from gridflow._feed.ledger import EpochRecord
from gridflow._feed.plan.epochs import BatchPlan, EpochCounter, missed_batches, rank_seed
from gridflow._feed.plan.grants import ArrivingGrant, FixedGrant, first_plan
from gridflow._feed.selection import refuse_left_out
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.plan.epochs import Absence
    from gridflow._feed.plan.grants import FirstPlan

__all__ = ["EpochSource", "of_absent"]


def _rows_missed(
    plan: BatchPlan | FirstPlan, absences: Sequence[Absence], epoch: int, replicas: int = 1
) -> int:
    """Return the rows of an epoch's batches for which a rank was away."""
    return sum(
        plan.rows_before(stop * replicas) - plan.rows_before(start * replicas)
        for start, stop in missed_batches(absences, epoch, plan.steps // replicas)
    )


def of_absent(
    dataset: str, rank: int, epoch: int, plan: BatchPlan, absences: Sequence[Absence]
) -> EpochRecord:
    """Return what a rank was fed in an epoch that ended while it was away."""
    missed = _rows_missed(plan, absences, epoch)
    return EpochRecord(
        dataset,
        rank,
        epoch,
        rows_fed=plan.rows_fed - missed,
        rows_repeated=plan.rows_repeated,
        rows_left_out=plan.rows_left_out + missed,
        complete=True,
    )


@dataclass(kw_only=True)
class EpochSource(Source):
    """A `Source` of rows that are read once in each epoch.

    While rows arrive (`ArrivingGrant`) the first epoch takes them in order of arrival, and its
    dataset has no length. Later epochs are as if all rows had been there from the start.

    `reader`: The rows.
    `shuffle`: Whether each epoch has a different order, determined by seed, rank and epoch.
    `seed`: See above.
    `counter`: Provides the epoch of each iteration.
    `window_rows`: Rows shuffled together; default: 65,536, or as many as fit into 64 MiB.
    `endless`: Continue with the next epoch instead of ending; the cardinality is then infinite.
    `rows_wanted`, `multiple`: For batches that must have the size of other ranks' batches, see
        `BatchPlan`.
    `own_rows`: Outside training: the rows that count, each of which comes once, in order.
    """

    grant: FixedGrant | ArrivingGrant
    reader: Reader
    shuffle: bool = False
    seed: int = 0
    counter: EpochCounter = field(default_factory=EpochCounter)
    window_rows: int | None = None
    endless: bool = False
    rows_wanted: int = 0
    multiple: int = 1
    own_rows: int | None = None
    #: The plan of what has arrived of the first epoch.
    _first: BatchPlan | None = field(default=None, init=False)
    #: Up to which epoch it has said what was missed.
    _told_missed: int = field(default=0, init=False)

    @property
    def steps(self) -> int:
        """Steps of an epoch; waits until known."""
        return self.grant.steps()

    @property
    def steps_given(self) -> int:
        return self.steps if self.first_steps is None else min(self.steps, self.first_steps)

    @property
    def has_empty_batches(self) -> bool:
        """Whether fewer rows count than there are batches."""
        return self.own_rows is not None and self.own_rows < self.steps * self.replicas

    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an iteration has a step, once known; None if it times out."""
        if self.first_steps is not None and step >= self.first_steps:
            return False
        return self.grant.has_step(step, seconds)

    def steps_if_known(self) -> int | None:
        """Return the steps of an iteration, or None if unknown."""
        return self.steps_given if self.grant.are_complete else None

    def complete(self) -> EpochSource:
        """Return the source of all rows, once they have arrived."""
        if self.grant.is_fixed:
            return self
        steps = self.steps
        self._look_again()
        return replace(self, grant=FixedGrant(steps))

    def in_order(self, rows: int, others: Sequence[int]) -> EpochSource:
        """Return a source of the same rows for one pass in order, in equal steps on all ranks.

        `rows`: Those that count.
        `others`: The same of each rank that takes part in a step.
        """
        # A rank without rows of its own still reads those that it was lent, in equal steps.
        steps = math.ceil(max(*others, self.reader.rows) / self.batch_size)
        return replace(
            self,
            grant=FixedGrant(steps),
            tail="spread",
            shuffle=False,
            counter=EpochCounter(),
            endless=False,
            rows_wanted=0,
            multiple=1,
            own_rows=rows,
        )

    def window(self, *, shuffle: bool) -> int:
        """Return how many rows to hold at a time."""
        size_of, columns = self.reader.row_bytes, self.selection
        found = window_rows_for(size_of(columns.columns), size_of(columns.texts), shuffle=shuffle)
        return self.window_rows or found

    def plan(self, epoch: int) -> BatchPlan | FirstPlan:
        """Return the plan of an epoch, in elements of ``batch_size / replicas`` rows."""
        steps = self.complete().steps
        if not epoch and isinstance(self.grant, ArrivingGrant):
            return first_plan(
                self.reader.chunk_rows,
                self.grant.counts(),
                self.batch_size,
                self.tail,
                replicas=self.replicas,
                window_rows=self.window(shuffle=False),
            )
        return BatchPlan(
            self.reader.chunk_rows,
            self.batch_size // self.replicas,
            steps * self.replicas,
            self.tail,
            self.shuffle,
            rank_seed(self.seed, self.rank),
            epoch,
            self.window(shuffle=self.shuffle),
            self.rows_wanted,
            self.multiple,
            self.reader.chunks_together,
        )

    def epoch(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the next epoch, window by window; see `Source.epoch`."""
        epoch, start_step = self.counter.begin()
        self._report_missed(epoch)
        start = at = start_step * self.replicas
        if not epoch:
            has_arrived, self._first = False, None
            try:
                for batches in self._arriving(start):
                    at += len(batches[0])
                    yield batches
                has_arrived = True
            finally:
                if self._first is not None and not has_arrived:
                    self._report(0, self._first, start, at, complete=False)
        yield from self._planned(epoch, start, at)

    def _ready(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the first epoch's batches from an element to another, whose rows have arrived."""
        self._look_again()
        self._first = self._plan_of(stop)
        yield from assemble(self.reader, self.selection.tensors, self._first, start)

    def _planned(self, epoch: int, start: int, at: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the rest of an epoch with a known plan, from an element on."""
        plan = self.plan(epoch)
        if at >= plan.steps > 0:
            raise InvalidArgument(
                f"the epoch has {plan.steps // self.replicas} steps, so it can't start at batch "
                f"{at // self.replicas}. After a complete epoch, continue with "
                f"EpochCounter.set({epoch + 1})."
            )
        last = plan.steps
        if self.first_steps is not None:
            last = min(last, self.first_steps * self.replicas)
        if at >= last:
            self._report(epoch, plan, start, last, complete=True)
            return
        try:
            for batches in assemble(self.reader, self.selection.tensors, plan, at, last):
                at += len(batches[0])
                if at == last:
                    # The consumer may not return after the last batch: Keras doesn't.
                    self._report(epoch, plan, start, at, complete=True)
                yield batches
        finally:
            if at < last:
                self._report(epoch, plan, start, at, complete=False)

    def _plan_of(self, batches: int) -> BatchPlan:
        """Return the plan of the first elements of the first epoch, while rows arrive."""
        return BatchPlan(
            self.reader.chunk_rows,
            self.batch_size // self.replicas,
            batches,
            "repeat" if self.tail == "repeat" else "drop",
            window_rows=self.window(shuffle=False),
        )

    def _look_again(self) -> None:
        self.reader.refresh()
        refuse_left_out(self.selection.columns, self.reader.left_out)

    def _missed(self, epoch: int, plan: BatchPlan | FirstPlan) -> int:
        """Return how many rows of an epoch this rank didn't feed, as it was away."""
        return _rows_missed(plan, self.counter.absences, epoch, self.replicas)

    def _report_missed(self, epoch: int) -> None:
        """Say what epochs weren't fed that ended while this rank was away.

        Those of fits that have ended meanwhile are in earlier absences, and were told by others.
        """
        if not self.counter.absences:
            return
        (first, _), (last, _) = self.counter.absences[-1]
        for missed in range(max(first, self._told_missed), min(last, epoch)):
            plan = self.plan(missed)
            self._report(missed, plan, plan.steps, plan.steps, complete=True)
        self._told_missed = epoch

    def _report(
        self, epoch: int, plan: BatchPlan | FirstPlan, start: int, at: int, *, complete: bool
    ) -> None:
        """Say what an epoch, begun at an element, was fed until it came to another."""
        before, until = plan.rows_before(start), plan.rows_before(at)
        left_out = plan.rows_left_out
        if self.own_rows is not None:  # batches with repeated rows are emptied again
            before, until = min(before, self.own_rows), min(until, self.own_rows)
            left_out = plan.rows - self.own_rows
        if complete:  # also for a shortened epoch
            left_out = max(0, plan.rows - until)
        missed = self._missed(epoch, plan)
        self._record(
            epoch,
            rows_fed=until - before,
            rows_repeated=max(0, until - plan.rows),
            rows_left_out=left_out + missed,
            complete=complete,
            rows_before=before - missed,
        )

    def static_rows(self) -> int | None:
        """Return the rows of an element, or None if they may differ."""
        if not self.grant.is_fixed:
            return super().static_rows()
        return self.batch_size // self.replicas if self.plan(0).is_even else None

    def bounded(self, batches: Any) -> Any:
        """Return the dataset of an iteration, given that of an epoch."""
        if not self.grant.is_fixed:  # it ends by itself
            return super().bounded(batches)
        if self.endless:
            return batches.repeat()
        # Repeating the epoch itself would begin the next one after an epoch that was shortened.
        nothing = batches.take(0).repeat()  # counts as infinite
        return batches.concatenate(nothing).take(self.steps_given * self.replicas)

    def mapped(self, batches: Any) -> Any:
        """Return the dataset with its functions applied."""
        batches = super().mapped(batches)
        if not self.has_empty_batches:
            return batches
        return batches.enumerate().map(self._emptied)

    def _emptied(self, number: Any, batch: Any) -> Any:
        """Empty batches that have only repeated rows.

        This comes last, so that functions needn't handle empty batches.
        """
        import tensorflow as tf

        most = tf.where(number < self.own_rows, tf.int64.max, tf.constant(0, tf.int64))
        return tf.nest.map_structure(lambda part: part[:most], batch)
