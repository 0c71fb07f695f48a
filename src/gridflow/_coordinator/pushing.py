"""Rows pushed into a running job: that part of a `JobHandle`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._feed.ingest.dataframes import is_dataframe
from gridflow._feed.push import STREAM
from gridflow._spec import strategies
from gridflow._spec.option_checks import seconds, whole_number
from gridflow._wire.clock import Clock
from gridflow._wire.receiver import REFUSED
from gridflow.errors import DataError, GridflowError, InvalidArgument

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from gridflow._coordinator.loop import JobRun
    from gridflow._coordinator.recorded import RecordedRun
    from gridflow._feed.push.sender import Destination
    from gridflow._launch.base import Launcher

_LOOK_SECONDS: Final = 0.05
#: Beyond the heartbeat's own timeout, time for a job to notice that an agent is gone.
_SETTLE_SECONDS: Final = 2.0
#: In the traceback of a task that pushes or asks.
_FEEDERS: Final = "gridflow/_feed/push/"
#: Errors of a feeder that may be consequences of the job's failure, whose cause is known soon.
_OF_THE_JOB: Final = re.compile(
    r"_flight\.|ConnectionError|ExecutorLostFailure|exited unexpectedly|[Cc]ancelled|shut ?down"
)
#: An agent's reason for refusing rows, inside Flight's message.
_REFUSAL: Final = re.compile(rf"{re.escape(REFUSED)}(.+?)\.*(?: Detail: |$)", re.DOTALL)


class Pushing:
    """Rows for the functions that read ``ctx.stream``."""

    _run: JobRun | RecordedRun
    _launcher: Launcher
    _ended: threading.Event
    _error: BaseException | None
    _wait: Callable[[float | None], bool]
    state: Any

    def feed(
        self,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        epochs: int = 1,
        timeout: float | None = None,
        checkpoint_location: str | None = None,
        trigger: Mapping[str, Any] | None = None,
    ) -> int:
        """Push rows into the running job, for functions that read `TrainingContext.stream`.

        Tasks of another Spark job send the rows to the agents, preferring those with most room, and
        wait while there is none. Blocks until the agents have all rows. It may be called again, and
        from several threads. On each rank, the rows of a partition keep their order; partitions
        don't.

        When Spark retries a task, no row is lost or doubled if its partition has the rows in the
        same order. Cache a DataFrame for which that isn't so.

        Parameters
        ----------
        rows : DataFrame, RDD, DStream, or what ``data=`` takes
            An RDD contains Rows or dicts, or tuples if `columns` is given. Pass a DStream of such
            RDDs before its context is started; the call then returns at once. A streaming DataFrame
            is pushed micro-batch by micro-batch until it or the job ends.
        columns : list of str, optional
            Columns to send, by default all. For an RDD of tuples, the names of their values.
        epochs : int, default 1
            How often to send the rows, one pass after the other.
        timeout : float, optional
            Seconds to wait until all ranks have called ``ctx.stream``. Default: ``start_timeout``.
        checkpoint_location : str, optional
            Required for a streaming DataFrame: where Spark records its progress. It records a
            micro-batch once a checkpoint of the model covers it.
        trigger : mapping, optional
            For a streaming DataFrame: the arguments of ``DataStreamWriter.trigger``, such as
            ``{"availableNow": True}`` or ``{"processingTime": "10 seconds"}``.

        Returns
        -------
        int
            How many rows were taken: fewer than given if the function wanted no more.

        Raises
        ------
        TimeoutError
            Some rank doesn't call ``ctx.stream`` in time.
        NotEnoughSlots
            The job itself uses all of Spark's slots.
        DataError
            The rows could not be computed, or can't be fed.
        GridflowError
            What the job has failed with.
        """
        whole_number("epochs", epochs, 1)
        if timeout is not None:
            seconds("timeout", timeout)
        if isinstance(columns, str):
            raise InvalidArgument(
                f"columns= must be a list of names; got the string {columns!r}. "
                f"Use columns=[{columns!r}]."
            )
        if getattr(rows, "isStreaming", False):
            if epochs != 1:
                raise InvalidArgument(
                    f"epochs={epochs}: a streaming DataFrame can be read only once. Leave epochs= "
                    "out, or feed each of its batches with foreachBatch."
                )
            return self._feed_stream(rows, columns, timeout, checkpoint_location, trigger)
        if checkpoint_location is not None or trigger is not None:
            raise InvalidArgument(
                "checkpoint_location= and trigger= are only for a streaming DataFrame; got "
                f"{type(rows).__name__}. Leave them out."
            )
        if hasattr(rows, "foreachRDD") and not is_dataframe(rows):
            rows.foreachRDD(lambda rdd: self.feed(rdd, columns=columns, epochs=epochs))
            return 0
        taken = 0
        for epoch in range(epochs):
            if epoch and self._ended.is_set() and self._error is None:
                break  # the function wanted no more rows, and has returned
            destination = self._destination(timeout)
            if not destination.receivers:
                break
            taken += self._push(destination, rows, columns)
        return taken

    def _push(self, destination: Destination, rows: Any, columns: Sequence[str] | None) -> int:
        """Push rows once; return how many were taken."""
        before = self._run.streams.rows_pushed
        try:
            return self._launcher.feed(destination, rows, columns, self._takes_no_more)
        except InterruptedError:
            self._ended.wait(_SETTLE_SECONDS)  # for the agents to say how many rows they have
        except (DataError, pa.ArrowException, ConnectionError) as error:
            own = _own_words(error)
            if own is None:
                self._wait_for_failure()
            if not self._ended.is_set():
                raise DataError(own or f"can't push rows: {error}") from error
            if self._error is not None:
                raise self._error from None
        return self._run.streams.rows_pushed - before  # it succeeded without the rest

    def infer(
        self,
        rows: DataFrame,
        *,
        schema: str = "prediction array<float>",
        timeout: float = 600.0,
    ) -> DataFrame:
        """Return a DataFrame of the function's answers to rows.

        The function reads them with `TrainingContext.stream` and answers each batch with
        `TrainingContext.results`, on all workers (``strategy="none"``). A batch has rows of one
        partition. Each row has one answer, in the same order, with all its columns. The DataFrame
        is computed when it is used, which must be before `stop`.

        Parameters
        ----------
        rows : DataFrame
        schema : str
            Names and types of the columns that are passed to ``ctx.results``.
        timeout : float, default 600
            Seconds within which the function must read or answer a row.

        Raises
        ------
        InvalidArgument
            `rows` isn't a DataFrame, `schema` isn't a schema, or the job has ended.
        NotEnoughSlots
            The job itself uses all of Spark's slots.
        """
        destination = self._destination(None)
        if not destination.receivers:
            raise InvalidArgument("the job takes no more rows. Call infer() before stop().")
        self._refuse_dealt("infer()")
        seconds("timeout", timeout)
        return self._launcher.infer(destination, rows, schema, timeout)

    def stop(self) -> None:
        """End the streams: the function reads the remaining rows and goes on to its end.

        Returns at once. `feed` in other threads returns the number of rows taken by then.
        """
        self._run.streams.end_streams()

    def _feed_stream(
        self,
        rows: DataFrame,
        columns: Sequence[str] | None,
        timeout: float | None,
        checkpoint_location: str | None,
        trigger: Mapping[str, Any] | None,
    ) -> int:
        """Push a streaming DataFrame until it ends; return how many rows were taken."""
        if checkpoint_location is None:
            raise InvalidArgument(
                "a streaming DataFrame needs checkpoint_location=: a folder of its own where "
                "Spark records its progress. With the distributor's checkpoint_dir=, a new "
                "driver resumes from there, and no row is lost or trained on twice."
            )
        self._refuse_dealt("a streaming DataFrame")
        if not self._destination(timeout).receivers:
            return 0
        covered, taken = self._run.streams.part_streams(), [0]

        def feed_batch(batch: DataFrame, label: str) -> None:
            rows = self.feed(batch, columns=columns)
            if not rows and not self._takes_no_more(0.0):
                return
            taken[0] += rows
            is_covered = self._run.streams.end_section(label, self._ended.is_set)
            if not is_covered:  # Spark mustn't record it
                raise self._error or InterruptedError(f"micro-batch {label} was not trained on")

        options = {"checkpointLocation": checkpoint_location, "trigger": trigger}
        self._launcher.feed_stream(rows, feed_batch, covered, options, self._takes_no_more)
        if self._ended.is_set() and self._error is not None:
            raise self._error
        return taken[0]

    def _refuse_dealt(self, what: str) -> None:
        """Refuse rows for a strategy whose chief deals them out."""
        name = self._run.spec.training.strategy
        if strategies.of(name).hands_out_steps:
            raise InvalidArgument(
                f"{what} isn't supported with strategy={name!r}, whose chief deals rows out to "
                "workers without Python. Use feed() with a DataFrame (for a stream, in "
                "foreachBatch), or another strategy."
            )

    def _takes_no_more(self, seconds: float) -> bool:
        """Wait, and return whether the job takes no more rows."""
        if self._ended.wait(seconds):
            return True
        destination = self._run.streams.destination(STREAM)
        return destination is not None and not destination.receivers

    def _destination(self, timeout: float | None) -> Destination:
        """Wait until all ranks take rows; return where to send them."""
        limit = self._run.spec.start_timeout if timeout is None else timeout
        clock = Clock()
        give_up = clock.now() + limit
        while True:
            if self._ended.is_set() and not self._run.is_recorded:
                if self._error is not None:
                    raise self._error
                raise InvalidArgument("the job has ended and takes no more rows.")
            destination = self._run.streams.destination(STREAM)
            if destination is not None:
                return destination
            if clock.now() > give_up:
                silent = ", ".join(self._run.streams.silent_tasks(STREAM))
                raise TimeoutError(
                    f"{silent} did not call ctx.stream() within {limit:g} seconds, and rows can "
                    f"only be pushed to functions that do. The job is {self.state}, and goes on."
                )
            self._ended.wait(_LOOK_SECONDS)

    def _wait_for_failure(self) -> None:
        """Wait as long as a job may take to notice a failure."""
        self._wait(self._run.spec.deadlines.heartbeat + _SETTLE_SECONDS)


def is_of_a_feeder(error: BaseException | None) -> bool:
    """Return whether a pushing or asking task's error may be a consequence of the job's failure.

    An error of `Pushing.feed` isn't: it has waited for the job's own error.
    """
    text = str(error)
    is_echo = not isinstance(error, GridflowError) and _own_words(error) is None
    return is_echo and _FEEDERS in text


def _own_words(error: BaseException | None) -> str | None:
    """Return a feeder's own error: rows that can't be computed or can't be fed.

    None if it may be a consequence of the job's failure.
    """
    text = str(error)
    refusal = _REFUSAL.search(text)
    if refusal:
        return f"can't push rows: {refusal[1]}."
    return None if _OF_THE_JOB.search(text) or not isinstance(error, DataError) else text
