"""Rows that are pushed while the function runs: ``ctx.stream`` and what goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow._feed.push import STREAM
from gridflow._spec.options import whole_number
from gridflow._training import arriving
from gridflow._wire.child import StreamNews, StreamOpened, StreamResults, StreamTaken
from gridflow._wire.reports import EpochFed, FeedingStopped, SectionTrained
from gridflow.errors import DataError, GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.plan.grants import Standing
    from gridflow._feed.selection import Columns
    from gridflow._training.runtime import TaskRuntime


class Streaming:
    """The part of a `TrainingContext` that has to do with rows that are pushed."""

    _runtime: TaskRuntime
    _stream: StreamSource | None = None
    _answers: list[Mapping[str, Any]] | None = None
    _has_stopped = False

    def stream(
        self,
        batch_size: int,
        *,
        features: Columns,
        label: Columns | None = None,
        sample_weight: str | None = None,
        tail: Tail = "spread",
        map: Callable[..., Any] | None = None,  # noqa: A002 (that of tf.data)
        prefetch: int | None = None,
    ) -> Any:
        """Return the rows that `JobHandle.feed` or `JobHandle.infer` push to this rank.

        They come once, in the order in which they arrive, without a known end: the dataset ends
        when `JobHandle.stop` was called, or `stop_feeding`, and all rows were handed out. To be
        called once, by all ranks. Waits for the first row.

        Ranks that train one model make equal steps: one that has no rows lets all wait. At the end
        what a rank has beyond the full batches of the shortest is dealt out to further steps, in
        which a rank that has nothing left repeats its last rows, or left out (``tail="drop"``).
        ``result.ledger`` says so. Where each rank trains alone (``strategy="none"``) each goes on
        as its own rows come.

        Parameters
        ----------
        batch_size : int
            Rows per step and rank, at most.
        features, label, sample_weight, tail, map, prefetch
            As for `dataset`.

        Returns
        -------
        tf.data.Dataset or tf.distribute.DistributedDataset
            For one ``model.fit(..., epochs=1)``, for fits with ``steps_per_epoch`` one after
            another, or for a loop of your own. Under JAX and torch, where each rank trains alone,
            an iterator over numpy arrays. To the chief of ``parameter_server``, which deals the
            rows out, something for one ``ctx.fit``.

        Raises
        ------
        InvalidArgument
            It was called before, or the strategy or backend has no such datasets.
        DataError
            The stream ended before this rank had a row.
        """
        from gridflow._feed.dataset.stream import source_of
        from gridflow._feed.plan.streams import StreamArrivals
        from gridflow._feed.store.stream_reader import StreamReader

        runtime = self._runtime
        if self._stream is not None:
            raise InvalidArgument("ctx.stream() was called before: the rows of a job come once.")
        arriving.check(batch_size, tail)
        make = runtime.mode.streams(together=runtime.trains_together)
        news = self._open(batch_size)
        folder = Path(runtime.setup.spool).parent / "streams" / STREAM
        reader = StreamReader(STREAM, folder, news.first[STREAM], news.skip[STREAM])
        reader.look(self._news().segments[STREAM])
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "tail": tail,
            "function": map,
            "rank": runtime.rank,
            "segments": self._segments,
            "on_taken": lambda rows: runtime.channel.send(StreamTaken(STREAM, rows)),
            "on_epoch": lambda record: runtime.channel.send(EpochFed(record)),
            "on_section": self._end_section,
            "arrivals": StreamArrivals(
                self._standing,
                runtime.inbox.wait_for,
                section=news.begin[STREAM],
                own=runtime.rank if runtime.trains_together else 0,
                batch_size=batch_size,
                tail=tail,
            ),
            "rows_before": news.before[STREAM],
        }
        columns: dict[str, Any] = {
            "features": features,
            "label": label,
            "sample_weight": sample_weight,
        }
        ahead = 2 if prefetch is None else whole_number("prefetch", prefetch, 0)
        dataset, self._stream = make(source_of(reader, **columns, **options), ahead)
        runtime.stream = self._stream
        return dataset

    @property
    def should_stop(self) -> bool:
        """Whether no more rows will come to this rank, and it has taken all of them.

        Of a stream that `stream` has returned; for a loop that asks before it draws a batch. Under
        strategies that train one model it becomes True on all ranks after the same step. Without a
        stream: whether feeding has ended.
        """
        if self._stream is None:
            news = self._runtime.inbox.latest(StreamNews)
            if news is None or STREAM in news.first:  # it waits for its first row
                return news is not None and STREAM in news.counts
            return news.ended
        return self._stream.is_used_up

    def stop_feeding(self) -> None:
        """Let nobody push rows any more: feeders end at once, without reading what is left.

        What has arrived by then can still be read. Of the ranks one is enough.
        """
        if not self._has_stopped:
            self._has_stopped = True
            self._runtime.channel.send(FeedingStopped())

    def results(self, values: Any) -> None:
        """Hand back what `JobHandle.infer` is to return for the last batch that has no answer yet.

        Parameters
        ----------
        values : array, list, or dict of str to array or list
            With one entry for each row of the batch, in the same order. A dict has the columns by
            name; anything else is the only column. Arrays of more than one dimension become
            arrays.

        Raises
        ------
        GridflowError
            The number of rows is another one, or no batch waits for an answer.
        """
        from gridflow._feed.push.answers import to_batch, write

        if self._stream is None:
            raise GridflowError("ctx.results() answers batches of ctx.stream(), which comes first.")
        part = to_batch(values)
        segment, is_whole = self._stream.answered(part.num_rows)
        self._answers = [*(self._answers or []), part]
        if is_whole:
            path = self._runtime.work_dir / f"answers-{segment}.arrow"
            write(path, self._answers)
            self._answers = None
            self._runtime.channel.send(StreamResults(STREAM, segment, str(path)))

    # ---------------------------------------------------------------------------------------------

    def _open(self, batch_size: int) -> StreamNews:
        """Let the agent take rows, and wait for the first one."""
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
                f"the stream ended before a row came to {runtime.task}: feed() was not called, or "
                "had no rows for it. Only a job of start() can be fed, not one of run()."
            )
        return news

    def _news(self) -> StreamNews:
        return self._runtime.inbox.wait(StreamNews)

    def _segments(self, after: int, seconds: float) -> int:
        """Return the number of segments, once there are more than so many or time is over."""
        inbox = self._runtime.inbox

        def is_there() -> bool:
            news = self._news()
            return news.segments[STREAM] > after or STREAM in news.counts

        if seconds:
            inbox.wait_for(is_there, seconds)
        return self._news().segments[STREAM]

    def _standing(self, section: int) -> tuple[Standing, bool]:
        """Return what is known of a section, and whether the stream has ended with it."""
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
        """Make a checkpoint that covers a section, and say that it is trained on."""
        from gridflow._keras.patches.hooks import incremental

        self._runtime.channel.send(SectionTrained(section, incremental.save_section()))
