"""Datasets that are trained on before all of their rows have arrived."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from gridflow._feed.dataset.assemble import assemble
from gridflow._feed.dataset.source import Source, made, shared
from gridflow._feed.plan.epochs import BatchPlan
from gridflow._feed.plan.grants import first_plan
from gridflow._feed.selection import refuse_left_out, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._feed.plan.grants import FirstPlan, Grants
    from gridflow._feed.selection import Columns
    from gridflow._feed.store import SpoolReader

__all__ = ["EarlySource", "distribute", "early_source_of"]

_ATTRIBUTE: Final = "_gridflow_early"
_LOOK_SECONDS: Final = 0.2


def _nobody_listens() -> None:
    """Do nothing."""


@dataclass
class EarlySource(Source):
    """A `Source` whose first epoch takes the rows in the order in which they arrive.

    Every later one is an epoch of the `complete` source. Its ``steps`` mean nothing: `arrivals`
    knows them in time, and until then its dataset has no length. ``on_begun`` is called, maybe
    more than once, when the first step has been made.
    """

    arrivals: Grants = None  # type: ignore[assignment]  # (no field before it lacks a default)
    on_begun: Callable[[], None] = _nobody_listens

    def complete(self) -> Source:
        """Return the source of all rows, once they have arrived."""
        steps = self.arrivals.steps()
        self._look_again()
        known = {each.name: getattr(self, each.name) for each in fields(Source) if each.init}
        return Source(**{**known, "steps": steps})

    def plan(self, epoch: int) -> BatchPlan | FirstPlan:
        """Return the plan of an epoch, once all rows have arrived."""
        source = self.complete()
        if epoch:
            return source.plan(epoch)
        return first_plan(
            self.reader.chunk_rows,
            self.arrivals.counts(),
            self.batch_size,
            self.tail,
            replicas=self.replicas,
            window_rows=self.window(shuffle=False),
        )

    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an iteration has a step, once that is known; None if time is over."""
        if self.first_steps is not None and step >= self.first_steps:
            return False
        if step:
            self.on_begun()
        return self.arrivals.has_step(step, seconds)

    def steps_if_known(self) -> int | None:
        """Return the steps of an iteration, None while rows arrive."""
        if not self.arrivals.are_complete:
            return None
        steps = self.arrivals.steps()
        return steps if self.first_steps is None else min(steps, self.first_steps)

    def epoch(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the next epoch, window by window; the first one waits for rows on its way.

        While it waits it yields windows without batches: TensorFlow can drop an iteration between
        two of them, and would keep who drops it waiting for as long as one takes.
        """
        epoch, start_step = self.counter.begin()
        start = at = start_step * self.replicas
        plan: BatchPlan | None = None
        try:
            while not epoch:
                if at:
                    self.on_begun()
                steps = self.arrivals.steps_beyond(at // self.replicas, _LOOK_SECONDS)
                if steps is None:
                    break
                if steps * self.replicas <= at:
                    yield self._nothing()
                    continue
                self._look_again()
                plan = self._plan_of(steps)
                for batches in assemble(self.reader, self.selection.tensors, plan, at):
                    at += len(batches[0])
                    yield batches
            plan = None
        finally:
            if plan is not None:
                self.report(epoch, plan, start, at, complete=False)
        yield from self.planned(epoch, start, at)

    def static_rows(self) -> int | None:
        """Return the rows of an element, None where they may come to differ."""
        return None if self.tail == "spread" else self.batch_size // self.replicas

    def bounded(self, batches: Any) -> Any:
        """Return the dataset of an iteration, which ends by itself."""
        return (
            batches if self.first_steps is None else batches.take(self.first_steps * self.replicas)
        )

    def dataset(self, prefetch: int = 2) -> Any:
        """Return the ``tf.data.Dataset``, of unknown cardinality."""
        dataset = super().dataset(prefetch)
        setattr(dataset, _ATTRIBUTE, self)
        return dataset

    def _nothing(self) -> tuple[np.ndarray, ...]:
        """Return a window without batches."""
        size = self.batch_size // self.replicas
        found: list[np.ndarray] = []
        for tensor in self.selection.tensors:
            if tensor.is_ragged:  # lengths of rows, and items: see `assemble`
                found += [np.empty((0, size), np.int64), np.empty(0, tensor.numpy_dtype)]
            else:
                found.append(np.empty((0, size, *tensor.row_shape), tensor.numpy_dtype))
        return tuple(found)

    def _plan_of(self, steps: int) -> BatchPlan:
        """Return the plan of the first steps of the first epoch."""
        return BatchPlan(
            self.reader.chunk_rows,
            self.batch_size // self.replicas,
            steps * self.replicas,
            "repeat" if self.tail == "repeat" else "drop",
            window_rows=self.window(shuffle=False),
        )

    def _look_again(self) -> None:
        spool = cast("SpoolReader", self.reader)  # nothing else grows
        spool.refresh()
        refuse_left_out(self.selection.columns, spool.left_out)


def early_source_of(dataset: object) -> EarlySource | None:
    """Return the source of a dataset that is trained on early, None for any other."""
    source = getattr(dataset, _ATTRIBUTE, None) or getattr(dataset, "source", None)
    return source if isinstance(source, EarlySource) else None


def distribute(
    strategy: Any,
    reader: SpoolReader,
    arrivals: Grants,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: str | None = None,
    prefetch: int = 2,
    own_rows: Callable[[], Sequence[int]],
    **options: Any,
) -> Any:
    """Return the dataset in the form that the strategy's ``Model.fit`` and ``run`` want.

    Parameters
    ----------
    reader : SpoolReader
        Of a spool that grows, and has a row.
    arrivals : Grants
    own_rows : callable
        Returns the rows of each rank that count outside of training; waits for all rows.

    Other parameters are those of `gridflow._feed.dataset.source.distribute`.
    """
    selection = select(reader.specs, features, label, sample_weight, reader.dataset)
    source = EarlySource(reader, selection, steps=0, arrivals=arrivals, **options)
    return made(strategy, shared(strategy, source), prefetch, own_rows)
