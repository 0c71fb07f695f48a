"""A running job: what `TensorflowDistributor.start` returns."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 (registers its end before this module does)
import dataclasses
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, cast

from gridflow._coordinator import folders
from gridflow._coordinator.phases import Phase
from gridflow._coordinator.pushing import Pushing, is_of_a_feeder
from gridflow._feed.push import STREAM
from gridflow._result import Result
from gridflow._spec import profiles
from gridflow._spec.cluster import Task
from gridflow._spec.option_checks import choose
from gridflow.errors import ClientUnreachable, InvalidArgument, JobCancelled

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import TracebackType

    from gridflow._coordinator.folders import Claim
    from gridflow._coordinator.loop import JobRun
    from gridflow._coordinator.progress import JobReport
    from gridflow._coordinator.record import Outcome
    from gridflow._coordinator.recorded import RecordedRun
    from gridflow._launch.base import Launcher

_WAITED_FOR: Final = tuple(phase.value for phase in Phase if phase is not Phase.CLOSED)
_SLICE_SECONDS: Final = 0.2
_running: weakref.WeakSet[JobHandle] = weakref.WeakSet()


class JobHandle(Pushing):
    """A job that runs in the background.

    ``with distributor.start(fn) as job:`` waits for its end, and cancels it after an error. A job
    ends with the driver: a script that ends or fails cancels the jobs that are still
    running. In notebooks and other asynchronous programs, ``await handle`` returns the result.

    Attributes
    ----------
    job_dir : Path
        The job's folder on the driver.

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

    def __init__(
        self,
        run: JobRun | RecordedRun,
        launcher: Launcher,
        job_dir: Path,
        claim: Claim | None = None,
    ) -> None:
        self.job_dir = job_dir
        self._claim = claim
        self._run, self._launcher = run, launcher
        self._ended = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._is_cancelled = False
        #: Whether nobody has this handle who could feed the job.
        self.is_never_fed = False
        _running.add(self)
        try:
            launcher.make_thread(self._work, f"gridflow-job-{job_dir.name}").start()
        except BaseException:  # too many threads: nobody is to wait for its end
            _running.discard(self)
            raise

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
        """The job's progress: generation, and each task's epoch, step and losses."""
        return dataclasses.replace(self._run.report(), state=self.state)

    def done(self) -> bool:
        """Return whether the job and everything that it started have ended."""
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
            The job is still running, and continues.
        JobCancelled
            `cancel` ended it.
        GridflowError
            The job's error, as `TensorflowDistributor.run` raises it.
        """
        if not self._wait(timeout):
            raise TimeoutError(f"the job is {self.state} after {timeout:g} seconds; it goes on.")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """End the job, all tasks in order; returns at once.

        A second call doesn't wait for the tasks. It has no effect on a job that has ended.
        """
        if not self._ended.is_set():
            self._is_cancelled = True
            self._run.cancel()

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
        is_echo = is_of_a_feeder(error)
        if is_echo:
            self._wait_for_failure()
        failed = self._error if self._ended.is_set() else None
        self.cancel()
        self._wait(None)  # shutdown_timeout bounds it
        if failed is not None and is_echo:
            raise failed from error

    def wait_until(self, state: str, timeout: float | None = None) -> None:
        """Wait until the job has reached a state: ``handle.wait_until("training")``.

        Returns immediately if it has already reached the state, or has succeeded.

        Parameters
        ----------
        state : str
            One of the values of `state` before the end.
        timeout : float, optional
            Seconds. Default: as long as it takes.

        Raises
        ------
        TimeoutError
            The job hasn't reached the state; it continues.
        GridflowError
            The job ended before, with this error.
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
            Its index, or its name such as ``worker:1``.
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

    def stacks(self, timeout: float = 10.0) -> dict[str, str | None]:
        """Return where each task is right now: the Python stacks of its threads, main thread first.

        A job that seems to hang can be asked; it isn't disturbed.

        Parameters
        ----------
        timeout : float, default 10
            Seconds to wait for the tasks' answers.

        Returns
        -------
        dict of str to str or None
            By task, such as ``worker:0``. None for a task that hasn't answered: it isn't up, is
            stopped, or runs C code that holds Python's GIL. Empty once the job has ended.

        Raises
        ------
        InvalidArgument
            The tasks can't be asked: executors don't reach this process.
        """
        if not (isinstance(timeout, int | float) and timeout > 0):
            raise InvalidArgument(f"timeout must be a number of seconds above 0; got {timeout!r}.")
        found = self._run.stacks(timeout, self._ended.is_set)
        return {} if self._ended.is_set() else found

    def profile(self, steps: tuple[int, int]) -> Path:
        """Profile steps of fits on all ranks, with TensorFlow's or JAX's profiler.

        TensorBoard shows the profiles of all ranks side by side, if its plugin ``xprof`` is
        installed.

        Parameters
        ----------
        steps : tuple of int
            The first and the last step, such as ``(100, 110)``. Each process counts them from its
            start, over all fits; with ``steps_per_execution``, an execution is one. A process that
            is past the first one begins with its next.

        Returns
        -------
        Path
            The folder in which there will be a file for each rank, below the job's event files.

        Raises
        ------
        InvalidArgument
            `steps` isn't such a pair, the job has ended, its tasks can't be asked, or they train on
            PyTorch or with servers.
        """
        first, last = profiles.check(steps)
        if self._ended.is_set():
            raise InvalidArgument(f"the job has ended: {self.state}. Ask while it trains.")
        return self._run.profile(first, last)

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the result without keeping others from working."""
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        return f"JobHandle({self.job_dir.name}, {self.state})"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: where the job stands now, or how it ended."""
        from gridflow._coordinator.views import error_view, report_view

        report = self.report
        shown = report_view(report, self.job_dir.name, list(self._run.log_paths))
        if self._ended.is_set() and self._error is not None:
            return shown + error_view(self._error)
        return shown

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
        """Wait for the end, in slices. A stream that nobody can feed is ended once it is read.

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
            if self.is_never_fed and self._run.streams.is_awaited(STREAM):
                self.is_never_fed = False
                self.stop()

    def _outcome(self) -> Outcome:
        """Run the job, its coordinator here or, where nobody can reach it, beside rank 0."""
        try:
            return self._run.run()
        except ClientUnreachable as error:
            from gridflow._coordinator.executor_coordinator import inside_of

            run = cast("JobRun", self._run)  # no other has a coordinator
            self._run = inside_of(run.job, self._launcher, error)
            run.wake()
            if self._is_cancelled:  # which the first one may have heard too late
                self._run.cancel()
        return self._run.run()

    def _work(self) -> None:
        try:
            with folders.running(self.job_dir):
                self._result = Result(self._outcome(), self.job_dir)
        except BaseException as error:  # noqa: BLE001 (raised again by result())
            self._error = error
        finally:
            try:
                if self._claim is not None:
                    self._claim.release()
            finally:  # whatever that raises: somebody waits
                self._ended.set()
                self._run.wake()
                _running.discard(self)


def _end_all() -> None:
    """End what still runs when the driver does."""
    handles = list(_running)
    for handle in handles:
        handle.cancel()
    for handle in handles:
        handle._wait(None)  # noqa: SLF001 (shutdown_timeout bounds it)


# Exit handlers run too late: by then Python has ended the pools of threads of concurrent.futures,
# in which gRPC's server hears from the agents. These here run in the reverse order.
threading._register_atexit(_end_all)  # type: ignore[attr-defined]  # noqa: SLF001
