"""A running job: what `TensorflowDistributor.start` returns."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from gridflow.coordinator import folders
from gridflow.coordinator.member import Phase
from gridflow.errors import DataError, InvalidArgument, JobCancelled
from gridflow.feed.push import STREAM
from gridflow.result import Result
from gridflow.spec.cluster import Task
from gridflow.spec.options import choose, seconds, whole_number

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path
    from types import TracebackType

    from pyspark.sql import DataFrame

    from gridflow.coordinator.loop import JobRun
    from gridflow.coordinator.progress import JobReport
    from gridflow.feed.push.sender import Destination
    from gridflow.launch.base import Launcher

_WAITED_FOR: Final = tuple(phase.value for phase in Phase if phase is not Phase.CLOSED)
_SLICE_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.05
#: Beyond the heartbeat's own timeout, for a job to notice that an agent is gone.
_SETTLE_SECONDS: Final = 2.0
#: What is in the traceback of a task that pushes or asks.
_FEEDERS: Final = "gridflow/feed/push/"
_running: weakref.WeakSet[JobHandle] = weakref.WeakSet()


class JobHandle:
    """A job that runs in the background.

    ``with distributor.start(fn) as job:`` waits for its end, and cancels it after an error. It ends
    with the driver: a script that comes to its end, or fails, cancels the jobs that still
    run. ``await handle`` is the result, too, in a notebook or another asynchronous program.

    Attributes
    ----------
    job_dir : Path
        What the job leaves in the driver, while it is written.

    Examples
    --------
    >>> from gridflow import LocalLauncher, TensorflowDistributor
    >>> def whoami(ctx):
    ...     return ctx.rank
    >>> distributor = TensorflowDistributor(2, strategy="none", launcher=LocalLauncher())
    >>> handle = distributor.start(whoami)
    >>> handle.result(timeout=300).values
    RankValues(pickle, pickle)
    """

    def __init__(self, run: JobRun, launcher: Launcher, job_dir: Path) -> None:
        self.job_dir = job_dir
        self._run, self._launcher = run, launcher
        self._ended = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        _running.add(self)
        launcher.make_thread(self._work, f"gridflow-job-{job_dir.name}").start()

    @property
    def state(self) -> str:
        """Where the job stands.

        ``gathering`` (agents come up), ``starting`` (training processes do), ``training``,
        ``evaluating``; ``collecting``, ``clearing`` and ``relaunching`` after a failure;
        ``closing``; in the end ``succeeded``, ``failed`` or ``cancelled``.
        """
        if not self._ended.is_set():
            state = self._run.state
            return Phase.CLOSING.value if state == Phase.CLOSED.value else state
        if self._error is None:
            return "succeeded"
        return "cancelled" if isinstance(self._error, JobCancelled) else "failed"

    @property
    def report(self) -> JobReport:
        """How far it has come: generation, each task's epoch, step and losses."""
        return dataclasses.replace(self._run.report(), state=self.state)

    def done(self) -> bool:
        """Return whether it has ended, with all that it started."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the end, and return what `TensorflowDistributor.run` would.

        Parameters
        ----------
        timeout : float, optional
            Seconds. Default: as long as it takes.

        Raises
        ------
        TimeoutError
            It still runs, and goes on.
        JobCancelled
            `cancel` ended it.
        GridflowError
            What the job failed with, as `TensorflowDistributor.run` raises it.
        """
        if not self._wait(timeout):
            raise TimeoutError(f"the job is {self.state} after {timeout:g} seconds; it goes on.")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """End the job, all tasks in order; returns at once.

        A second call doesn't wait for the tasks any more. Of a job that has ended nothing changes.
        """
        if not self._ended.is_set():
            self._run.cancel()

    def feed(
        self,
        rows: Any,
        *,
        columns: Sequence[str] | None = None,
        epochs: int = 1,
        timeout: float | None = None,
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
        rows : DataFrame, RDD, or what ``data=`` takes
            An RDD of Rows or dicts, or with `columns` of tuples.
        columns : list of str, optional
            Those to send, by default all; the names of an RDD's values.
        epochs : int, default 1
            How often to send them, once after the other.
        timeout : float, optional
            Seconds to wait until all ranks have called ``ctx.stream``. Default: ``start_timeout``.

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
        taken = 0
        for _ in range(epochs):
            destination = self._destination(timeout)
            if not destination.receivers:
                break
            before = self._run.rows_pushed
            try:
                taken += self._launcher.feed(destination, rows, columns)
            except (DataError, pa.ArrowException, ConnectionError):
                self._wait(self._run.spec.deadlines.heartbeat_timeout + _SETTLE_SECONDS)
                if not self._ended.is_set():
                    raise
                if self._error is not None:
                    raise self._error from None
                taken += self._run.rows_pushed - before  # it succeeded without the rest
        return taken

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
        seconds("timeout", timeout)
        return self._launcher.infer(destination, rows, schema, timeout)

    def stop(self) -> None:
        """Let no more rows be pushed: the function reads what is there, and goes on to its end.

        Returns at once. `feed` in other threads returns what was taken by then.
        """
        self._run.end_streams()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop feeding and wait for the result; after an error cancel the job.

        Where a feeder's error is but the echo of the job's own, that is raised.
        """
        if kind is None:
            self.stop()
            self.result_in_foreground()
            return
        if _FEEDERS in str(error):
            self._wait(self._run.spec.deadlines.heartbeat_timeout + _SETTLE_SECONDS)
        failed = self._error if self._ended.is_set() else None
        self.cancel()
        self._wait(None)  # shutdown_timeout bounds it
        if failed is not None and _FEEDERS in str(error):
            raise failed from error

    def _destination(self, timeout: float | None) -> Destination:
        """Wait until all ranks take rows; return where they are to go."""
        limit = self._run.spec.deadlines.start_timeout if timeout is None else timeout
        give_up = time.monotonic() + limit
        while True:
            if self._ended.is_set():
                if self._error is not None:
                    raise self._error
                raise InvalidArgument("the job has ended: nobody takes rows any more.")
            destination = self._run.destination(STREAM)
            if destination is not None:
                return destination
            if time.monotonic() > give_up:
                silent = ", ".join(self._run.silent_tasks(STREAM))
                raise TimeoutError(
                    f"{silent} did not call ctx.stream() within {limit:g} seconds: rows can only "
                    f"be pushed to functions that read them so. The job is {self.state}, and goes "
                    "on."
                )
            self._ended.wait(_LOOK_SECONDS)

    def wait_until(self, state: str, timeout: float | None = None) -> None:
        """Wait until the job has come to a state: ``handle.wait_until("training")``.

        Returns at once if it has been there before, and when it has succeeded.

        Parameters
        ----------
        state : str
            One of those that `state` knows before the end.
        timeout : float, optional
            Seconds. Default: as long as it takes.

        Raises
        ------
        TimeoutError
            It has not come that far; it goes on.
        GridflowError
            It ended before, with this error.
        """
        choose("state", state, _WAITED_FOR)
        if self._run.has_been(state, timeout, self._ended.is_set):
            return
        if not self._ended.is_set():
            raise TimeoutError(f"the job is {self.state}, not yet {state}, after {timeout:g} s.")
        if self._error is not None:
            raise self._error

    def logs(self, task: int | str = 0) -> str:
        """Return everything that a task has printed so far.

        Parameters
        ----------
        task : int or str, default 0
            Its place, or its name such as ``worker:1``.
        """
        paths = self._run.log_paths
        if isinstance(task, str):
            path = paths.get(Task.parse(task))
        else:
            path = list(paths.values())[task] if 0 <= task < len(paths) else None
        if path is None:
            names = ", ".join(map(str, paths))
            raise InvalidArgument(f"there is no task {task!r} in this job; there are {names}.")
        return path.read_text(encoding="utf-8")

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the result without keeping others from working."""
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        return f"JobHandle({self.job_dir.name}, {self.state})"

    def result_in_foreground(self) -> Result:
        """Return the result; Ctrl-C ends the job, a second one without waiting for its tasks."""
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                return self.result()
            except KeyboardInterrupt as error:
                interrupt = error
                self.cancel()
            except JobCancelled:
                if interrupt is not None:
                    raise interrupt from None
                raise

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the end, in slices.

        Ctrl-C may be delivered to any thread of the process, gRPC's included; a main thread that
        waits for a lock without a limit then never hears of it.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_SECONDS if give_up is None else give_up - time.monotonic()
            if self._ended.wait(min(left, _SLICE_SECONDS)):
                return True
            if give_up is not None and time.monotonic() >= give_up:
                return False

    def _work(self) -> None:
        try:
            with folders.running(self.job_dir):
                self._result = Result(self._run.run(), self.job_dir)
        except BaseException as error:  # noqa: BLE001 (raised again by result())
            self._error = error
        finally:
            self._ended.set()
            self._run.wake()
            _running.discard(self)


@atexit.register
def _end_all() -> None:
    """End what still runs when the driver does."""
    handles = list(_running)
    for handle in handles:
        handle.cancel()
    for handle in handles:
        handle._wait(None)  # noqa: SLF001 (shutdown_timeout bounds it)
