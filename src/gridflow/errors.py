"""Every error that gridflow raises on purpose.

::

    GridflowError
    ├── InvalidArgument          (ValueError)    bad input, found before anything is launched
    │   ├── SchemaError                          a column is missing or can't be fed
    │   └── UnpicklableFunction                  the training function can't be sent
    ├── MissingDependency        (ImportError)   a package is missing that an extra installs
    ├── NotEnoughSlots                           the cluster can't run all the tasks at once
    │   └── NotEnoughGpus                        fewer GPUs exist, or are free, than the tasks need
    ├── StartTimeout             (TimeoutError)  tasks did not register or did not come up in time
    ├── EnvironmentMismatch                      executors lack TensorFlow, or have another version
    ├── DataError                                rows that can't be fed, found while reading them
    ├── JobExists                                the job name or run id is already in use
    ├── JobCancelled                             JobHandle.cancel() has ended the job
    ├── NetworkError             (OSError)       the coordinator can't listen, or can't be reached
    │   └── ClientUnreachable                    executors can't connect to a Spark Connect client
    ├── WireError                                a damaged message, or one of another version
    ├── BrokenBarrier                            ranks that wait for each other will never meet
    │   └── BarrierTimeout       (TimeoutError)  they didn't meet in time
    ├── UnsafePath         (PermissionError)     another user owns a folder, or can write to it
    └── TrainingFailed                           a task failed; names the first one and why
        ├── TaskLost                             an agent, executor or host disappeared
        ├── StepTimeout          (TimeoutError)  a rank stopped making steps
        └── RunTimeout           (TimeoutError)  the job exceeded its time limit

All of them survive pickling, as Spark and Keras callbacks may carry them between processes.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gridflow._wire.failures import TaskFailure

__all__ = [
    "BarrierTimeout",
    "BrokenBarrier",
    "ClientUnreachable",
    "DataError",
    "EnvironmentMismatch",
    "GridflowError",
    "InvalidArgument",
    "JobCancelled",
    "JobExists",
    "MissingDependency",
    "NetworkError",
    "NotEnoughGpus",
    "NotEnoughSlots",
    "RunTimeout",
    "SchemaError",
    "StartTimeout",
    "StepTimeout",
    "TaskLost",
    "TrainingFailed",
    "UnpicklableFunction",
    "UnsafePath",
    "WireError",
    "did_you_mean",
]


class GridflowError(Exception):
    """Root of the tree in the module's docstring.

    Attributes
    ----------
    spark_errors : tuple of str
        What Spark reported, if a launch failed there: the names of its exceptions and error
        conditions, such as ``org.apache.spark.shuffle.FetchFailedException`` or
        ``FAILED_READ_FILE``.
    """

    spark_errors: tuple[str, ...] = ()


class InvalidArgument(GridflowError, ValueError):
    """An argument can't be used; the message says what is allowed."""


class SchemaError(InvalidArgument):
    """A column is missing or has a type that can't become a tensor."""


class UnpicklableFunction(InvalidArgument):
    """The training function, or something it captures, can't be pickled and sent to the tasks."""


class MissingDependency(GridflowError, ImportError):
    """A package is missing that one of gridflow's extras installs."""


class NotEnoughSlots(GridflowError):
    """The cluster has fewer task slots than the job has tasks.

    Attributes
    ----------
    required, available : int
        Task slots that the job needs at the same time, and those that exist.
    """

    def __init__(self, message: str, required: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.required = required
        self.available = available

    def __reduce__(self) -> tuple[Callable[..., NotEnoughSlots], tuple[object, ...]]:
        return type(self), (str(self), self.required, self.available)


class NotEnoughGpus(NotEnoughSlots):
    """Fewer GPUs exist, or are free, than the tasks need.

    Attributes
    ----------
    required, available : int
        GPUs that the job needs, and those available to it. Fractions of GPUs if it shares them.
    failures : tuple of TaskFailure
        The tasks that found no GPU, with their hosts. Empty if this was known before the launch.
    """

    def __init__(
        self,
        message: str,
        required: int = 0,
        available: int = 0,
        failures: tuple[TaskFailure, ...] = (),
    ) -> None:
        super().__init__(message, required, available)
        self.failures = failures

    def __reduce__(self) -> tuple[Callable[..., NotEnoughGpus], tuple[object, ...]]:
        return type(self), (str(self), self.required, self.available, self.failures)


class JobExists(GridflowError):
    """The job name or run id is already in use, or another job has these checkpoints."""


class UnsafePath(GridflowError, PermissionError):
    """Another user owns a folder or file that gridflow uses, or can write to it, or it is a link.

    Reading it could run the other user's code.
    """


class WireError(GridflowError):
    """A message is damaged, or comes from another version of gridflow."""


class BrokenBarrier(GridflowError):
    """``ctx.barrier()``, ``broadcast()`` or ``all_gather()`` can't complete: a rank won't join.

    It has returned from the function, or has called another of these methods.
    """


class BarrierTimeout(BrokenBarrier, TimeoutError):
    """A rank didn't join ``ctx.barrier()``, ``broadcast()`` or ``all_gather()`` in time."""


class NetworkError(GridflowError, OSError):
    """The coordinator can't listen on its address, or executors can't connect to it."""


class ClientUnreachable(NetworkError):
    """Executors can't connect to a Spark Connect client."""


class JobCancelled(GridflowError):
    """`JobHandle.cancel` has ended the job."""


class _FailureError(GridflowError):
    """An error that carries the failures of the tasks.

    Attributes
    ----------
    failures : tuple of TaskFailure
        The failed tasks, root cause first.
    first : TaskFailure or None
        The failure that most likely caused the others.
    """

    def __init__(self, message: str, failures: tuple[TaskFailure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures

    @property
    def first(self) -> TaskFailure | None:
        """The failure that most likely caused the others."""
        return self.failures[0] if self.failures else None

    def __reduce__(self) -> tuple[Callable[..., _FailureError], tuple[object, ...]]:
        return type(self), (str(self), self.failures)


class StartTimeout(_FailureError, TimeoutError):
    """Tasks did not register, or did not come up, within ``start_timeout``."""


class EnvironmentMismatch(_FailureError):
    """The tasks' Python environments don't match the job, or each other."""


class DataError(_FailureError):
    """Rows can't be fed: nulls that no rule covers, arrays of varying length, a full disk.

    Or Spark failed to compute them; ``__cause__`` is then Spark's exception.
    """


class TrainingFailed(_FailureError):
    """A task failed; ``failures[0]`` is the first one, with its host, exit and traceback."""


class TaskLost(TrainingFailed):
    """An agent, its executor or its host disappeared."""


class StepTimeout(TrainingFailed, TimeoutError):
    """A rank made no step for ``Deadlines.step`` seconds.

    Its stack is in the message; ``failures[0].stacks`` has those of all ranks, by task.
    """


class RunTimeout(TrainingFailed, TimeoutError):
    """The job exceeded ``Deadlines.run`` seconds and was ended."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for a near miss, else an empty string."""
    candidates = list(allowed)
    near = [each for each in candidates if each.casefold() == name.casefold()]
    near = near or difflib.get_close_matches(name, candidates, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
