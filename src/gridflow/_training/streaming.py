"""Rows that are pushed while the function runs: ``ctx.stream``, its results, and rows as sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._feed.push import STREAM
from gridflow._training import feeding
from gridflow._wire.child import (
    StreamNews,
    StreamOpened,
    StreamResults,
    StreamTaken,
)
from gridflow._wire.reports import EpochFed, FeedingStopped, SectionTrained
from gridflow.errors import DataError, GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._feed.plan.grants import Standing
    from gridflow._feed.store.reader import StreamReader
    from gridflow._training.modes.base import DatasetRequest
    from gridflow._training.runtime import TaskRuntime


class PushedStream:
    """The rows pushed to this rank."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._stream: StreamSource | None = None
        self._answers: list[Mapping[str, Any]] = []
        self._has_stopped = False

    def open(self, request: DatasetRequest) -> Any:
        """See `TrainingContext.stream`."""
        from gridflow._feed.dataset.stream import of_stream
        from gridflow._feed.plan.streams import StreamGrant

        runtime, batch_size, tail = self._runtime, request.batch_size, request.tail
        if self._stream is not None:
            raise InvalidArgument(
                "ctx.stream() can be called only once: the rows of a job come once."
            )
        if runtime.spec.least is not None:
            raise InvalidArgument(
                "ctx.stream() needs all workers, whose rows make a step together, but with "
                f"num_workers=({runtime.spec.least}, {runtime.num_workers}) they may come and go. "
                f"Use num_workers={runtime.num_workers}."
            )
        feeding.check(batch_size, tail)
        make = runtime.mode.streams(together=runtime.trains_together)
        news = self._wait_for_row(batch_size)
        reader = _reader(runtime, STREAM, news)
        reader.look(self._news().segments[STREAM])
        source = of_stream(
            reader,
            **request.columns,
            batch_size=batch_size,
            tail=tail,
            function=request.function,
            rank=runtime.rank,
            segments=self._segments,
            on_taken=lambda rows: runtime.channel.send(StreamTaken(STREAM, rows)),
            on_epoch=lambda record: runtime.channel.send(EpochFed(record)),
            on_section=self._end_section,
            grant=StreamGrant(
                self._standing,
                runtime.inbox.wait_for,
                section=news.begin[STREAM],
                own=runtime.rank if runtime.trains_together else 0,
                batch_size=batch_size,
                tail=tail,
            ),
            rows_before=news.before[STREAM],
        )
        dataset, self._stream = make(source, request.ahead)
        runtime.stream = self._stream
        return dataset

    @property
    def should_stop(self) -> bool:
        """See `TrainingContext.should_stop`."""
        if self._stream is None:
            news = self._runtime.inbox.latest(StreamNews)
            if news is None or STREAM in news.first:  # still waiting for the first row
                return news is not None and STREAM in news.counts
            return news.ended
        return self._stream.is_used_up

    def stop(self) -> None:
        """See `TrainingContext.stop_feeding`."""
        if not self._has_stopped:
            self._has_stopped = True
            self._runtime.channel.send(FeedingStopped())

    def answer(self, values: Any) -> None:
        """See `TrainingContext.results`."""
        from gridflow._feed.push.answers import to_batch, write

        if self._stream is None:
            raise GridflowError(
                "ctx.results() answers batches of ctx.stream(): call ctx.stream() first."
            )
        part = to_batch(values)
        segment, is_whole = self._stream.answered(part.num_rows)
        self._answers.append(part)
        if is_whole:
            path = self._runtime.work_dir / f"answers-{segment}.arrow"
            write(path, self._answers)
            self._answers = []
            self._runtime.channel.send(StreamResults(STREAM, segment, str(path)))

    def _wait_for_row(self, batch_size: int) -> StreamNews:
        """Let the agent accept rows, and wait for the first one."""
        runtime = self._runtime
        runtime.channel.send(StreamOpened(STREAM, batch_size, runtime.trains_together))

        def has_row() -> bool:
            news = runtime.inbox.latest(StreamNews)
            if news is None or STREAM not in news.first:
                return False
            return news.segments[STREAM] > news.first[STREAM] or STREAM in news.counts

        runtime.inbox.wait_for(has_row)
        news = self._news()
        if news.segments[STREAM] <= news.first[STREAM]:
            raise DataError(
                f"the stream ended before {runtime.task} got a row: feed() was not called, or had "
                "no rows for it. Only jobs started with start() can be fed, not those of run()."
            )
        return news

    def _news(self) -> StreamNews:
        return self._runtime.inbox.wait(StreamNews)

    def _segments(self, after: int, seconds: float) -> int:
        """Wait for more segments, or for the timeout; return their number."""
        inbox = self._runtime.inbox

        def is_there() -> bool:
            news = self._news()
            return news.segments[STREAM] > after or STREAM in news.counts

        if seconds:
            inbox.wait_for(is_there, seconds)
        return self._news().segments[STREAM]

    def _standing(self, section: int) -> tuple[Standing, bool]:
        """Return what is known about a section, and whether it is the stream's last."""
        from gridflow._feed.plan.grants import Standing

        news = self._news()
        now, certain = news.section.get(STREAM, section), news.certain.get(STREAM, 0)
        repeats = news.repeats.get(STREAM, True)
        if now == section:
            counts = news.counts.get(STREAM)
            ended = None if counts is None else tuple(counts)
            return Standing(certain, 0, ended, repeats), True
        if now == section + 1:
            return Standing(counts=tuple(news.previous[STREAM]), repeats=repeats), False
        return Standing(), False

    def _end_section(self, section: int) -> None:
        """Make a checkpoint that covers a section, and report that it has been trained on."""
        from gridflow._keras.patches.hooks import incremental

        self._runtime.channel.send(SectionTrained(section, incremental.save_section()))


class SentRows:
    """Rows pushed to this rank as they were sent, for a function that makes no tensors of them.

    A function may read several such streams, by their names.
    """

    def __init__(self, runtime: TaskRuntime, name: str) -> None:
        self._runtime, self._name, self._taken = runtime, name, 0
        inbox = runtime.inbox
        runtime.channel.send(StreamOpened(name, 1, together=False, as_sent=True))

        def is_open() -> bool:
            news = inbox.latest(StreamNews)
            return news is not None and name in news.first

        inbox.wait_for(is_open)
        self._reader = _reader(runtime, name, inbox.wait(StreamNews))

    def next(
        self, is_woken: Callable[[], bool], seconds: float | None = None
    ) -> tuple[int, pa.RecordBatch] | None:
        """Wait for the next segment; return its number and its rows.

        Returns None if there is none after so many seconds, at the end, or once `is_woken`, which
        `wake` lets it check.
        """
        inbox = self._runtime.inbox
        inbox.wait_for(lambda: is_woken() or self.has_rows or self.has_ended, seconds)
        self._reader.look(inbox.wait(StreamNews).segments[self._name])
        if not self._reader.rows:
            return None
        number, batch = self._reader.segment()
        self._reader.take(batch.num_rows)
        return number, batch

    @property
    def address(self) -> str:
        """``host:port`` to which rows are sent."""
        return self._runtime.inbox.wait(StreamNews).address

    @property
    def arrived(self) -> int:
        """How many rows have come so far."""
        return self._runtime.inbox.wait(StreamNews).certain[self._name]

    @property
    def has_rows(self) -> bool:
        """Whether `next` returns rows at once."""
        news = self._runtime.inbox.wait(StreamNews)
        return self._reader.rows > 0 or news.segments[self._name] > self._reader.mapped

    @property
    def has_ended(self) -> bool:
        """Whether no more rows will come."""
        return self._runtime.inbox.wait(StreamNews).ended

    def wake(self) -> None:
        """Let `next` check whether it is woken."""
        self._runtime.inbox.look_again()

    def taken(self, rows: int) -> None:
        """Report how many rows were read so far."""
        self._taken = rows
        self._runtime.channel.send(StreamTaken(self._name, rows))

    def refuse(self) -> None:
        """Let no more rows be sent to this rank."""
        self._runtime.channel.send(StreamTaken(self._name, self._taken, are_last=True))

    def answer(self, segment: int, answers: pa.RecordBatch) -> None:
        """Answer the rows of a segment."""
        from gridflow._feed.push.answers import write

        path = self._runtime.work_dir / f"answers-{self._name}-{segment}.arrow"
        write(path, [answers])
        self._runtime.channel.send(StreamResults(self._name, segment, str(path)))


def _reader(runtime: TaskRuntime, name: str, news: StreamNews) -> StreamReader:
    from gridflow._feed.store.reader import StreamReader

    folder = Path(runtime.setup.spool).parent / "streams" / name
    return StreamReader(name, folder, news.first[name], news.skip[name])
