"""From pushed rows to batches, in order of arrival, until no more rows will come.

A rank's agent keeps the rows in segments (`gridflow._feed.store.stream`). They are mapped, copied
once into batches, and released, so a stream may be larger than any disk. Imports TensorFlow only to
create a dataset.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow._feed.dataset.assemble import assemble, window_rows_for
from gridflow._feed.dataset.distributed import formed
from gridflow._feed.dataset.source import LOOK_SECONDS, SOURCE, Source, shared
from gridflow._feed.normalize import tensor_specs
from gridflow._feed.plan.epochs import BatchPlan
from gridflow._feed.selection import named, refuse_left_out, select
from gridflow._feed.store.reader import StreamReader, StreamRows, only
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa

    from gridflow._feed.plan.streams import StreamGrant
    from gridflow._feed.selection import Columns, Weights

__all__ = ["StreamProgress", "StreamSource", "distribute", "of_stream"]

_SHORT_SECONDS = 0.005
#: Seconds to wait until rows that the agent has are known here.
_ROWS_SECONDS = 60.0


@dataclass
class StreamProgress:
    """The position in a stream, shared by datasets derived from each other.

    `has_begun`: Whether reading has started.
    `consumer`: The position of those who consume batches, behind those who produce them.
    `steps`, `rows`: Steps of the section that were returned, and rows of earlier sections; for
        inference, all answered rows.
    `is_fit`: Whether a fit consumes them.
    `iterator`: A fit's iterator, with which the next epoch or fit continues.
    `rest`: The plan of the last steps, once they have started.
    `is_told`: Whether the ledger has its counts.
    `asked` (deque of (segment, rows, rows left in the segment, what the segment is called)):
        Batches waiting for answers, in order.
    """

    has_begun: bool = False
    consumer: StreamGrant | None = None
    steps: int = 0
    rows: int = 0
    is_fit: bool = False
    iterator: Any = None
    asked: deque[tuple[int, int, int, str]] = field(default_factory=deque)
    rest: BatchPlan | None = None
    is_told: bool = False


@dataclass(kw_only=True)
class StreamSource(Source):
    """A `Source` of pushed rows, for one pass; its first epoch is the only one.

    `grant`: Where those are who make the batches.
    `segments`: Returns the number of segments; waits up to a timeout for more than a given number.
    `on_taken`: Called with the number of rows taken.
    `on_section`: Called with a section whose rows were all trained on.
    `rows_before`: Rows of earlier generations.
    `is_asked`: Whether each batch must be answered; then it never has rows of two segments.
    """

    grant: StreamGrant
    reader: StreamReader
    segments: Callable[[int, float], int]
    on_taken: Callable[[int], None]
    on_section: Callable[[int], None]
    rows_before: int = 0
    is_asked: bool = False
    progress: StreamProgress = field(default_factory=StreamProgress)

    def __post_init__(self) -> None:
        # Before any batch is produced: consumers start where producers start.
        if self.progress.consumer is None:
            self.progress.consumer = self.grant.another()

    @property
    def consumer(self) -> StreamGrant:
        """The position of those who consume batches."""
        assert self.progress.consumer is not None
        return self.progress.consumer

    @property
    def is_used_up(self) -> bool:
        """Whether no more rows will come, and all have been returned."""
        if not self.consumer.is_last:
            return False
        if self.is_asked:
            return not (self.reader.rows or self.progress.asked)
        return self.progress.steps >= self.consumer.steps()

    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether there is another step, whatever its number in a fit.

        Ends sections whose steps have all been made.
        """
        del step
        while True:
            known = self.consumer.has_step(self.progress.steps, seconds)
            if known is not False or self.consumer.is_last:
                return known
            self.on_section(self.consumer.section)
            self.progress.rows += self.consumer.advance()
            self.progress.steps = 0

    def rows_trained(self) -> int:
        """Return the number of rows of the steps made since the generation began."""
        steps, consumer = self.progress.steps, self.consumer
        before = self.progress.rows
        if self.is_asked:
            return before
        if not consumer.are_complete or steps <= consumer.full():
            return before + steps * self.batch_size
        if steps >= consumer.steps():
            return before + consumer.counts()[consumer.own]
        plan, full = self.progress.rest, consumer.full()
        assert plan is not None
        begun = plan.rows_before((steps - full) * self.replicas)
        return before + full * self.batch_size + min(plan.rows, begun)

    @contextlib.contextmanager
    def step_of_fit(self) -> Iterator[None]:
        """Return a block in which a fit makes the step that it has asked for."""
        self.progress.steps += 1
        self.progress.is_fit = True
        try:
            yield
        finally:
            self.progress.is_fit = False

    def epoch(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the rows window by window, as they arrive."""
        if self.progress.has_begun:
            raise InvalidArgument(
                "the rows of ctx.stream() come only once, and have already been read. To train on "
                "them several times, send them again with feed(epochs=…), and fit with epochs=1."
            )
        self.progress.has_begun = True
        yield from self._asked() if self.is_asked else self._trained()

    def numpy_batches(self) -> Iterator[Any]:
        """Yield the batches as numpy arrays, for other backends than TensorFlow."""
        for windows in self.epoch():
            self.has_step(self.progress.steps, 0.0)
            for arrays in zip(*windows, strict=True):
                self.has_step(self.progress.steps, 0.0)
                self.progress.steps += 1
                batch = self.selection.pack(arrays)
                parts = batch if isinstance(batch, tuple) else (batch,)
                yield batch if self.function is None else self.function(*parts)

    def static_rows(self) -> int | None:
        """Return the rows of an element, None where they may differ."""
        return None if self.is_asked else super().static_rows()

    def _fitting_rows(self) -> int:
        """Return how many rows to hold at a time."""
        self._look()
        _, batch = self.reader.segment()
        size = int(only(self.reader.dataset, batch, self.selection.columns).nbytes)
        return int(window_rows_for(size // max(1, batch.num_rows), shuffle=False))

    def _trained(self) -> Iterator[tuple[np.ndarray, ...]]:
        fed = left = 0
        taken = self.reader.taken
        completed = False
        try:
            while True:
                before = self.reader.taken
                for batches in self._section():
                    fed += len(batches[0]) * len(batches[0][0]) if len(batches[0]) else 0
                    yield batches
                rest = self.grant.counts()[self.grant.own] - self.reader.taken + before
                self._look()
                if rest:  # tail="drop"
                    left += rest
                    self.reader.take(rest)
                    taken += rest
                if self.grant.is_last:
                    break
                self.grant.advance()
            completed = True
            used = self.reader.taken - taken
            self._tell(fed, fed - used, left)
        finally:
            if not completed:
                self.give_up()

    def give_up(self) -> None:
        """Give the account of a stream that nobody reads on; from any thread."""
        give_up = time.monotonic() + LOOK_SECONDS
        while self.is_used_up and not self.progress.is_told and time.monotonic() < give_up:
            time.sleep(_SHORT_SECONDS)  # the producer of batches reaches the end a moment later
        trained = self.rows_trained()
        self._tell(trained, 0, max(0, self.reader.found - trained), complete=False)

    def _section(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the batches of a section."""
        at = 0
        for batches in self._arriving():
            at += len(batches[0])
            yield batches
        while at < self.grant.full() * self.replicas:
            for batches in self._ready(at, self.grant.full() * self.replicas):
                at += len(batches[0])
                yield batches
        done, own = at // self.replicas, self.grant.counts()[self.grant.own]
        yield from self._rest(self.grant.steps() - done, own - done * self.batch_size)

    def _ready(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield full batches of the steps from an element on, and give their rows back."""
        most = max(1, self._fitting_rows() // self.batch_size)
        steps = min((stop - start) // self.replicas, most)
        rows, size = steps * self.batch_size, self.batch_size // self.replicas
        self._await(rows)
        chunks = self._rows(self.reader.next(rows))
        plan = BatchPlan(chunks.chunk_rows, size, steps * self.replicas, "drop", window_rows=rows)
        yield from assemble(chunks, self.selection.tensors, plan)
        self._take(rows)

    def _rows(self, batches: Sequence[pa.RecordBatch]) -> StreamRows:
        return StreamRows(self.reader.dataset, batches, self.selection.columns)

    def _rest(self, steps: int, rows: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the last batches: the remaining rows, spread over the steps of all ranks."""
        if not steps:
            return
        self._await(rows)
        chunks = self._rows(self.reader.next(rows) if rows else [self.reader.last])
        plan = BatchPlan(
            chunks.chunk_rows, self.batch_size // self.replicas, steps * self.replicas, self.tail
        )
        self.progress.rest = plan
        yield from assemble(chunks, self.selection.tensors, plan)
        self._take(rows)

    def _asked(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield batches to be answered, each with rows of one segment."""
        while True:
            ended = self.grant.is_last
            if not self._look(0.0 if ended else LOOK_SECONDS):
                if ended:
                    self._tell(self.reader.taken, 0, 0)
                    return
                yield self.nothing()
                continue
            number, batch = self.reader.segment()
            rows = min(batch.num_rows, self.batch_size)
            chunks = self._rows([batch.slice(0, rows)])
            plan = BatchPlan(chunks.chunk_rows, rows, 1, "drop", window_rows=rows)
            left = batch.num_rows - rows
            self.progress.asked.append((number, rows, left, self.reader.asked))
            yield from assemble(chunks, self.selection.tensors, plan)
            self._take(rows)

    def _look(self, seconds: float = 0.0) -> bool:
        """Map what has come; where nothing waits here, wait for some. Return whether there is."""
        seconds = 0.0 if self.reader.rows else seconds
        self.reader.look(self.segments(self.reader.mapped, seconds))
        return self.reader.rows > 0

    def _await(self, rows: int) -> None:
        """Map rows that are certain; their segment may become known a moment later."""
        self._look()
        give_up = time.monotonic() + _ROWS_SECONDS
        while self.reader.rows < rows and time.monotonic() < give_up:
            self.reader.look(self.segments(self.reader.mapped, LOOK_SECONDS))

    def _take(self, rows: int) -> None:
        self.reader.take(rows)
        self.on_taken(self.reader.taken)

    def _tell(self, fed: int, repeated: int, left: int, *, complete: bool = True) -> None:
        if not self.progress.is_told:
            self.progress.is_told = True
            self._record(
                0,
                rows_fed=fed,
                rows_repeated=repeated,
                rows_left_out=left,
                complete=complete,
                rows_before=self.rows_before,
            )

    def answered(self, rows: int) -> tuple[int, bool]:
        """Return the segment of the batch answered with these rows, and whether it is complete.

        Raises `GridflowError`: There is no such batch, or its number of rows differs.
        """
        if not self.progress.asked:
            raise GridflowError(
                "ctx.results() answers batches of ctx.stream() that come from infer(), each once "
                "and in order; no batch is waiting for an answer."
            )
        segment, wanted, left, where = self.progress.asked.popleft()
        if rows != wanted:
            raise GridflowError(
                f"ctx.results() got {rows} rows for a batch of {wanted} ({where}): pass one row "
                "for each row of the batch, in the same order."
            )
        self.progress.rows += rows
        return segment, not left


def of_stream(
    stream: StreamReader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    **options: Any,
) -> StreamSource:
    """Return the source of a stream that has at least one row; options are its fields."""
    specs = tensor_specs(stream.schema())
    refuse_left_out(named(features, label, sample_weight), stream.left_out)
    selection = select(specs, features, label, sample_weight, stream.dataset)
    return StreamSource(selection=selection, reader=stream, is_asked=stream.is_asked, **options)


def distribute(strategy: Any, source: StreamSource, prefetch: int) -> tuple[Any, StreamSource]:
    """Return the dataset in the form for the strategy's ``Model.fit``, and its source."""
    source = shared(strategy, source)

    def make(source: StreamSource) -> Any:
        return _counted(formed(strategy, source, prefetch, make))

    return make(source), source


def _counted(dataset: Any) -> Any:
    """Let a dataset count what loops draw of it; return it."""
    dataset.__class__ = _counting(dataset.__class__)
    return dataset


@functools.cache
def _counting(base: Any) -> Any:
    """Return the class of a dataset or iterator, so that batches are counted that a loop draws."""

    class Counting(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            found = super().__iter__()
            if found is not self:
                found.__class__ = _counting(found.__class__)
                setattr(found, SOURCE, getattr(self, SOURCE))
            return found

        def __next__(self) -> Any:
            source: StreamSource = getattr(self, SOURCE)
            counts = not (source.is_asked or source.progress.is_fit)
            if counts:
                source.has_step(source.progress.steps)
            found = super().__next__()
            source.progress.steps += counts
            return found

    Counting.__name__ = base.__name__
    return Counting
