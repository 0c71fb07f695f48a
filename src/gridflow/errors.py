"""Every error that gridflow raises on purpose.

::

    GridflowError
    ├── InvalidArgument          (ValueError)    bad input, found before anything is launched
    │   ├── SchemaError                          a column is missing or can't be fed
    │   └── UnpicklableFunction                  the training function can't be sent
    ├── MissingDependency        (ImportError)   a package that an extra would bring
    ├── NotEnoughSlots                           the cluster can't run all the tasks at once
    │   └── NotEnoughGpus                        fewer GPUs are there, or free, than the tasks need
    ├── StartTimeout             (TimeoutError)  tasks did not register or did not come up in time
    ├── EnvironmentMismatch                      executors lack TensorFlow, or have another version
    ├── DataError                                rows that can't be fed, found while they were read
    ├── JobExists                                a job of this name, or a run of this id, is there
    ├── JobCancelled                             JobHandle.cancel() has ended the job
    ├── NetworkError             (OSError)       the coordinator can't listen, or isn't reached
    │   └── ClientUnreachable                    executors can't connect to a Spark Connect client
    ├── WireError                                a message that is damaged, or of another version
    ├── BrokenBarrier                            ranks that wait for one another will never meet
    │   └── BarrierTimeout       (TimeoutError)  they didn't in the time that they had
    ├── UnsafePath         (PermissionError)     another user owns a folder, or can write to it
    └── TrainingFailed                           a task failed; names the first one and why
        ├── TaskLost                             an agent, executor or host disappeared
        ├── StepTimeout          (TimeoutError)  a rank stopped making steps
        └── RunTimeout           (TimeoutError)  the job took longer than it may

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
    """Root of the tree in the module's docstring."""


class InvalidArgument(GridflowError, ValueError):
    """What was given can't be used; the message says what is allowed."""


class SchemaError(InvalidArgument):
    """A column is missing or has a type that can't become a tensor."""


class UnpicklableFunction(InvalidArgument):
    """The training function, or something that it captures, can't be sent to the tasks."""


class MissingDependency(GridflowError, ImportError):
    """A package is missing that one of gridflow's extras installs."""


class NotEnoughSlots(GridflowError):
    """The cluster has fewer task slots than the job has tasks.

    Attributes
    ----------
    required, available : int
        Task slots that the job needs at the same time, and those there are.
    """

    def __init__(self, message: str, required: int = 0, available: int = 0) -> None:
        super().__init__(message)
        self.required = required
        self.available = available

    def __reduce__(self) -> tuple[Callable[..., NotEnoughSlots], tuple[object, ...]]:
        return type(self), (str(self), self.required, self.available)


class NotEnoughGpus(NotEnoughSlots):
    """Fewer GPUs are there, or are free, than the tasks need.

    Attributes
    ----------
    required, available : int
        GPUs that the job needs, and those that it could have; parts of GPUs where it shares them.
    failures : tuple of TaskFailure
        The tasks that found none, with their hosts; empty if it was known before the launch.
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
    """A job of this name, a run of this id, or the job that has these checkpoints, is there."""


class UnsafePath(GridflowError, PermissionError):
    """Another user owns a folder or file of gridflow's, or can write to it, or it is a link.

    What is read there could be that user's: it would run as this one's code.
    """


class WireError(GridflowError):
    """A message that isn't one: of another version of gridflow, or damaged."""


class BrokenBarrier(GridflowError):
    """``ctx.barrier()``, ``broadcast()`` or ``all_gather()`` can't be held: a rank won't come.

    It has returned from the function, or has called another one of these.
    """


class BarrierTimeout(BrokenBarrier, TimeoutError):
    """A rank didn't come to ``ctx.barrier()``, ``broadcast()`` or ``all_gather()`` in time."""


class NetworkError(GridflowError, OSError):
    """The coordinator can't listen where it is to, or executors can't connect to it there."""


class ClientUnreachable(NetworkError):
    """Executors can't connect to a client of Spark Connect."""


class JobCancelled(GridflowError):
    """`JobHandle.cancel` has ended the job."""


class _FailureError(GridflowError):
    """An error that carries the failures of the tasks.

    Attributes
    ----------
    failures : tuple of TaskFailure
        What is known of every failed task, root cause first.
    first : TaskFailure or None
        The failure that caused the others, as far as can be told.
    """

    def __init__(self, message: str, failures: tuple[TaskFailure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures

    @property
    def first(self) -> TaskFailure | None:
        """The failure that caused the others."""
        return self.failures[0] if self.failures else None

    def __reduce__(self) -> tuple[Callable[..., _FailureError], tuple[object, ...]]:
        return type(self), (str(self), self.failures)


class StartTimeout(_FailureError, TimeoutError):
    """Tasks did not register, or did not come up, within ``start_timeout``."""


class EnvironmentMismatch(_FailureError):
    """The tasks' Python environments don't fit the job, or one another."""


class DataError(_FailureError):
    """Rows that can't be fed: nulls that no rule covers, arrays of changing length, a full disk.

    Or rows that Spark failed to compute; ``__cause__`` is then what Spark raised.
    """


class TrainingFailed(_FailureError):
    """A task failed; ``failures[0]`` is the first one, with its host, exit and traceback."""


class TaskLost(TrainingFailed):
    """An agent, its executor or its host disappeared."""


class StepTimeout(TrainingFailed, TimeoutError):
    """A rank made no step for ``Deadlines.step`` seconds."""


class RunTimeout(TrainingFailed, TimeoutError):
    """The job ran for ``Deadlines.run`` seconds and was ended."""


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for a near miss, else an empty string."""
    candidates = list(allowed)
    near = [each for each in candidates if each.casefold() == name.casefold()]
    near = near or difflib.get_close_matches(name, candidates, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
