"""What holds of each kind of failure, the only table of it; and which exit code an error has.

A new kind is a name in `gridflow._spec.exits.FailureKind`, a row in `KINDS`, and somebody who
reports it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gridflow import errors
from gridflow._spec.exits import SIGNALLED, Exit, leave_message
from gridflow.errors import (
    DataError,
    EnvironmentMismatch,
    GridflowError,
    NotEnoughGpus,
    SchemaError,
    StartTimeout,
    StepTimeout,
    TaskLost,
    TrainingFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gridflow._spec.exits import FailureKind
    from gridflow._wire.failures import TaskFailure

__all__ = ["KINDS", "exit_code", "exit_codes", "exit_of", "kind_of"]

#: Each takes a message and ``failures=``.
_OfFailures: TypeAlias = (
    TrainingFailed | DataError | EnvironmentMismatch | StartTimeout | NotEnoughGpus
)


@dataclass(frozen=True)
class KindOfFailure:
    """What holds of all failures of a kind.

    Attributes
    ----------
    error : type
        What a job raises that it ends.
    exit : Exit
        The code of such a job; see `exit_of`.
    is_final : bool
        The same again fails again: the group isn't restarted, whatever the policy.
    is_replaced : bool
        A new process of the task alone may not meet it again, where the others can wait for one.
    is_gone : bool
        An agent is gone with its host or executor: nothing that the program did. The words of the
        tasks themselves say more of a cause.
    is_executors : bool
        The end of its executor looks so to a task that is still there.
    is_hosts : bool
        The host is to be looked into, so it is named.
    raised_as : tuple of type
        Errors that mean this when the function raises them.
    """

    error: type[_OfFailures]
    exit: Exit
    is_final: bool = False
    is_replaced: bool = False
    is_gone: bool = False
    is_executors: bool = False
    is_hosts: bool = False
    raised_as: tuple[type[Exception], ...] = ()


KINDS: Final[Mapping[FailureKind, KindOfFailure]] = {
    # The function raised.
    "exception": KindOfFailure(TrainingFailed, Exit.PROGRAM),
    # It called sys.exit(), or its process ended by itself.
    "exit": KindOfFailure(TrainingFailed, Exit.PROGRAM, is_replaced=True),
    # Its process was killed.
    "signal": KindOfFailure(TrainingFailed, Exit.KILLED, is_replaced=True, is_executors=True),
    # Its process is frozen.
    "stopped": KindOfFailure(TrainingFailed, Exit.KILLED, is_replaced=True),
    # The agent or its host is gone.
    "lost": KindOfFailure(TaskLost, Exit.LOST, is_gone=True, is_executors=True),
    # The same, and it was announced.
    "preempted": KindOfFailure(TaskLost, Exit.LOST, is_gone=True),
    # Its rows can't be fed.
    "data": KindOfFailure(DataError, Exit.DATA, is_final=True, raised_as=(DataError, SchemaError)),
    # Its Python doesn't fit.
    "environment": KindOfFailure(
        EnvironmentMismatch,
        Exit.ENVIRONMENT,
        is_final=True,
        is_hosts=True,
        raised_as=(EnvironmentMismatch,),
    ),
    # It did not come up.
    "start": KindOfFailure(StartTimeout, Exit.TRY_AGAIN, is_final=True),
    # It stopped making steps.
    "steps": KindOfFailure(StepTimeout, Exit.STUCK),
    # It found too few GPUs on its host.
    "gpus": KindOfFailure(NotEnoughGpus, Exit.SLOTS, is_final=True),
}
#: The first that fits.
_BY_ERROR: Final[tuple[tuple[type[BaseException], Exit], ...]] = (
    *((kind.error, kind.exit) for kind in KINDS.values() if kind.error is not TrainingFailed),
    (errors.SchemaError, Exit.DATA),
    (errors.InvalidArgument, Exit.USAGE),
    (errors.MissingDependency, Exit.ENVIRONMENT),
    (errors.NotEnoughSlots, Exit.SLOTS),
    (errors.RunTimeout, Exit.OVERDUE),
    (errors.NetworkError, Exit.NETWORK),
    (errors.JobExists, Exit.EXISTS),
    (errors.UnsafePath, Exit.UNSAFE),
    (errors.JobCancelled, Exit.INTERRUPTED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def kind_of(error: BaseException) -> FailureKind | None:
    """Return the kind of failure that an error of gridflow's own is when the function raises it."""
    return next((kind for kind, row in KINDS.items() if isinstance(error, row.raised_as)), None)


def exit_of(failure: TaskFailure) -> Exit:
    """Return the exit code of a job that a failure ends."""
    if (failure.exit_code or 0) >= SIGNALLED:
        return Exit.KILLED
    return KINDS[failure.kind].exit


def exit_code(error: BaseException | None) -> int:
    """Return the exit code for an error: one for each kind, the same in every release.

    From 128 on another try may succeed. The table is in ``docs/outcomes.md``.

    Parameters
    ----------
    error : BaseException or None
        None: there was none. Of errors that aren't gridflow's it is 1, as Python has it.

    Returns
    -------
    int

    Examples
    --------
    >>> from gridflow import NotEnoughSlots, exit_code
    >>> exit_code(NotEnoughSlots("2 tasks, 1 slot"))
    199
    """
    if error is None:
        return int(Exit.SUCCEEDED)
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return int(code)
    if isinstance(error, TrainingFailed):
        return int(Exit.PROGRAM if error.first is None else exit_of(error.first))
    return int(Exit.OTHER)


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """End the process with the code of the error, if one of gridflow's leaves the block.

    For scripts that an orchestrator starts, by ``spark-submit`` or plainly. The traceback is
    printed as ever, atexit functions run, and in a container on Kubernetes the pod's termination
    message says why. Other errors, and Ctrl-C, pass as they are.

    Raises
    ------
    SystemExit
        With `exit_code`, in place of a `GridflowError`.

    Examples
    --------
    >>> import gridflow
    >>> with gridflow.exit_codes():
    ...     result = "TensorflowDistributor(2).run(train)"
    """
    try:
        yield
    except GridflowError as error:
        code = exit_code(error)
        traceback.print_exc(file=sys.stderr)
        leave_message(f"{type(error).__name__}: {error}")
        raise SystemExit(code) from error
