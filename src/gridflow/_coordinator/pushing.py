"""Rows pushed into a running job: the part of a `JobHandle` that has to do with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

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
#: Beyond the heartbeat's own timeout, for a job to notice that an agent is gone.
_SETTLE_SECONDS: Final = 2.0
#: What is in the traceback of a task that pushes or asks.
_FEEDERS: Final = "gridflow/_feed/push/"
#: What a feeder may fail with because the job does, or its agents: the cause is known soon after.
_OF_THE_JOB: Final = re.compile(
    r"_flight\.|ConnectionError|ExecutorLostFailure|exited unexpectedly|[Cc]ancelled|shut ?down"
)
#: What an agent says of rows that it doesn't take, among what Flight says.
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
        """Push rows into the running job, to those who read `TrainingContext.stream`.

        Tasks of another Spark job send them to the agents, to the one with most room first, and
        wait while there is none. Blocks until all rows lie at the agents; may be called again, and
        from several threads. The order of the rows of a partition is kept on each rank, that of
        partitions isn't.

        A task that Spark tries again neither loses nor doubles rows, if its partition has them in
        the same order: cache a DataFrame that hasn't.

        Parameters
        ----------
        rows : DataFrame, RDD, DStream, or what ``data=`` takes
            An RDD of Rows or dicts, or with `columns` of tuples; a DStream of such RDDs, before
            its context is started: that returns at once. A streaming DataFrame is pushed
            micro-batch by micro-batch until it ends, or the job does.
        columns : list of str, optional
            Those to send, by default all; the names of an RDD's values.
        epochs : int, default 1
            How often to send them, once after the other.
        timeout : float, optional
            Seconds to wait until all ranks have called ``ctx.stream``. Default: ``start_timeout``.
        checkpoint_location : str, optional
            Of a streaming DataFrame, which needs one: where Spark notes how far it has come. It
            notes a micro-batch when the model's checkpoint covers it.
        trigger : mapping, optional
            Of a streaming DataFrame: what ``DataStreamWriter.trigger`` takes, such as
            ``{"availableNow": True}`` or ``{"processingTime": "10 seconds"}``.

        Returns
        -------
        int
            How many rows were taken: fewer where the function wanted no more.

        Raises
        ------
        TimeoutError
            Some rank doesn't call ``ctx.stream``.
        NotEnoughSlots
            The job itself takes all slots of Spark.
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
                f"columns= is a list of names, got the text {columns!r}: columns=[{columns!r}]."
            )
        if getattr(rows, "isStreaming", False):
            if epochs != 1:
                raise InvalidArgument(
                    f"epochs={epochs}: a streaming DataFrame comes once. Leave epochs= out, or "
                    "feed each of its batches by foreachBatch."
                )
            return self._feed_stream(rows, columns, timeout, checkpoint_location, trigger)
        if checkpoint_location is not None or trigger is not None:
            raise InvalidArgument(
                "checkpoint_location= and trigger= are for a streaming DataFrame; got "
                f"{type(rows).__name__}. Leave them out."
            )
        if hasattr(rows, "foreachRDD"):
            rows.foreachRDD(lambda rdd: self.feed(rdd, columns=columns, epochs=epochs))
            return 0
        taken = 0
        for epoch in range(epochs):
            if epoch and self._ended.is_set() and self._error is None:
                break  # the function wanted no more rows, and has returned since
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
                raise DataError(own or f"rows could not be pushed: {error}") from error
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
        """Return a DataFrame with what the function answers to its rows.

        The function reads them by `TrainingContext.stream` and answers each batch by
        `TrainingContext.results`, on as many workers as there are (``strategy="none"``). Batches
        hold rows of one partition; there is one row for each row, in the same order, with all its
        columns. The DataFrame is computed when it is used, which has to be before `stop`.

        Parameters
        ----------
        rows : DataFrame
        schema : str
            Names and types of the columns that ``ctx.results`` is given.
        timeout : float, default 600
            Seconds within which a part of a partition has to be answered.

        Raises
        ------
        InvalidArgument
            It is no DataFrame, or `schema` is none; the job has ended.
        NotEnoughSlots
            The job itself takes all slots of Spark.
        """
        destination = self._destination(None)
        if not destination.receivers:
            raise InvalidArgument("the job takes no more rows: infer() comes before stop().")
        self._refuse_dealt("infer()")
        seconds("timeout", timeout)
        return self._launcher.infer(destination, rows, schema, timeout)

    def stop(self) -> None:
        """Let no more rows be pushed: the function reads what is there, and goes on to its end.

        Returns at once. `feed` in other threads returns what was taken by then.
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
                "a streaming DataFrame needs checkpoint_location=: a folder, of its own, where "
                "Spark notes how far it has come. With the distributor's checkpoint_dir= a new "
                "driver goes on from there, and no row is lost or trained on twice."
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
            if not is_covered:  # Spark mustn't note it
                raise self._error or InterruptedError(f"micro-batch {label} was not trained on")

        options = {"checkpointLocation": checkpoint_location, "trigger": trigger}
        self._launcher.feed_stream(rows, feed_batch, covered, options, self._takes_no_more)
        if self._ended.is_set() and self._error is not None:
            raise self._error
        return taken[0]

    def _refuse_dealt(self, what: str) -> None:
        """Refuse what is for processes that read their rows themselves."""
        name = self._run.spec.training.strategy
        if strategies.of(name).hands_out_steps:
            raise InvalidArgument(
                f"{what} isn't there for strategy={name!r}, whose chief deals rows out to workers "
                "without Python. Use feed() with a DataFrame (of a stream by foreachBatch), or "
                "another strategy."
            )

    def _takes_no_more(self, seconds: float) -> bool:
        """Wait, and return whether the job takes no more rows."""
        if self._ended.wait(seconds):
            return True
        destination = self._run.streams.destination(STREAM)
        return destination is not None and not destination.receivers

    def _destination(self, timeout: float | None) -> Destination:
        """Wait until all ranks take rows; return where they are to go."""
        limit = self._run.spec.start_timeout if timeout is None else timeout
        clock = Clock()
        give_up = clock.now() + limit
        while True:
            if self._ended.is_set() and not self._run.is_recorded:
                if self._error is not None:
                    raise self._error
                raise InvalidArgument("the job has ended: nobody takes rows any more.")
            destination = self._run.streams.destination(STREAM)
            if destination is not None:
                return destination
            if clock.now() > give_up:
                silent = ", ".join(self._run.streams.silent_tasks(STREAM))
                raise TimeoutError(
                    f"{silent} did not call ctx.stream() within {limit:g} seconds: rows can only "
                    f"be pushed to functions that read them so. The job is {self.state}, and goes "
                    "on."
                )
            self._ended.wait(_LOOK_SECONDS)

    def _wait_for_failure(self) -> None:
        """Wait for as long as a job may take to fail, when something of it has."""
        self._wait(self._run.spec.deadlines.heartbeat + _SETTLE_SECONDS)


def is_of_a_feeder(error: BaseException | None) -> bool:
    """Return whether an error may be the echo, in a task that pushes or asks, of the job's own.

    What `Pushing.feed` raises isn't: it has waited for the job's own.
    """
    text = str(error)
    is_echo = not isinstance(error, GridflowError) and _own_words(error) is None
    return is_echo and _FEEDERS in text


def _own_words(error: BaseException | None) -> str | None:
    """Return what a feeder failed with by itself, as its rows can't be had, or can't be fed.

    None for what may be the echo of the job's own failure.
    """
    text = str(error)
    refusal = _REFUSAL.search(text)
    if refusal:
        return f"rows could not be pushed: {refusal[1]}."
    return None if _OF_THE_JOB.search(text) or not isinstance(error, DataError) else text
