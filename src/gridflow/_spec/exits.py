"""How jobs end: the exit codes, the kinds of failure, and which error has which. The only table.

From 1 to 127, a failure is permanent: trying again fails again. From 128, another try may succeed,
as after a signal. Codes below 128 follow sysexits.h where it has a matching one; a retryable
failure has the number of sysexits.h plus 128.

A new kind of failure is a name in `gridflow._wire.failures.FailureKind`, a row in `KINDS`, and
somebody who reports it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from gridflow import errors
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

    from gridflow._wire.failures import FailureKind

__all__ = [
    "KINDS",
    "SIGNALLED",
    "Exit",
    "exit_code",
    "exit_codes",
    "exit_of",
    "kind_of",
    "of_program",
]

#: What a shell adds to the number of the signal that ended a process.
SIGNALLED: Final = 128


class Exit(enum.IntEnum):
    """How a process of gridflow ended."""

    SUCCEEDED = 0
    #: Any other failure.
    OTHER = 1
    COMMAND_LINE = 2
    #: EX_USAGE: an argument is invalid; in a container, the job is wrong.
    USAGE = 64
    #: EX_DATAERR: rows or columns that can't be fed.
    DATA = 65
    #: EX_SOFTWARE: the program itself failed: it raised, or exited with a code below 128.
    PROGRAM = 70
    #: EX_OSERR: the coordinator can't listen on its address, or can't be reached there.
    NETWORK = 71
    #: EX_CANTCREAT: the job name or run id is already in use.
    EXISTS = 73
    #: EX_NOPERM: another user owns a folder that gridflow uses, or can write to it.
    UNSAFE = 77
    #: EX_CONFIG: a package is missing, or versions differ between tasks.
    ENVIRONMENT = 78
    #: Another task failed permanently, so this one was ended, too.
    GIVEN_UP = 113
    #: The job's time limit has passed; timeout(1) uses the same code.
    OVERDUE = 124
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    #: Ctrl-C, or a job that was cancelled.
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    #: EX_UNAVAILABLE: an agent, executor, host or peer was gone.
    LOST = SIGNALLED + 69
    #: EX_SOFTWARE: the program was killed or frozen, or exited with a code of 128 or above.
    KILLED = SIGNALLED + 70
    #: EX_OSERR: too few slots or GPUs exist or are free.
    SLOTS = SIGNALLED + 71
    #: EX_IOERR: a rank stopped making steps.
    STUCK = SIGNALLED + 74
    #: EX_TEMPFAIL: tasks did not come up in time, or a peer's name never resolved.
    TRY_AGAIN = SIGNALLED + 75

    @property
    def is_retryable(self) -> bool:
        """Whether another try may succeed."""
        return self >= SIGNALLED


#: Codes of ``gridflow launch`` besides those of its program.
_OF_LAUNCH: Final = frozenset(
    {Exit.SUCCEEDED, Exit.USAGE, Exit.GIVEN_UP, Exit.OVERDUE, Exit.LOST, Exit.TRY_AGAIN}
)


def of_program(code: int) -> int:
    """Return the exit code of a job whose program, or ``gridflow launch``, ended with a code."""
    if code in _OF_LAUNCH:
        return code
    return int(Exit.KILLED if code >= SIGNALLED else Exit.PROGRAM)


#: Each takes a message and ``failures=``.
_OfFailures: TypeAlias = (
    TrainingFailed | DataError | EnvironmentMismatch | StartTimeout | NotEnoughGpus
)


@dataclass(frozen=True)
class KindOfFailure:
    """The properties of a kind of failure.

    `error`: What a job that it ends raises.
    `exit`: The code of such a job; see `exit_of`.
    `is_final`: Trying again fails again: the group isn't restarted, whatever the policy.
    `is_replaced`: A new process of the task alone may not meet it again, where the others can wait
        for one.
    `is_gone`: An agent is gone with its host or executor: nothing that the program did. The words
        of the tasks themselves say more of a cause.
    `is_executors`: The end of its executor looks so to a task that is still there.
    `is_hosts`: The host is to be looked into, so it is named.
    `raised_as`: Errors that mean this when the function raises them.
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


def exit_of(kind: FailureKind, code: int | None) -> Exit:
    """Return the exit code of a job that a failure ends, whose process had a code, if any."""
    return Exit.KILLED if (code or 0) >= SIGNALLED else KINDS[kind].exit


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
    if not isinstance(error, TrainingFailed):
        return int(Exit.OTHER)
    first = error.first
    return int(Exit.PROGRAM if first is None else exit_of(first.kind, first.exit_code))


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


# Why a container ends, told where Kubernetes reads it.

#: Where the kubelet reads why a container ended; another one by this variable.
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_VARIABLE: Final = "GRIDFLOW_TERMINATION_LOG"
#: The kubelet reads no more of it.
_MOST_BYTES: Final = 4096


def leave_message(text: str) -> None:
    """Say why this container ends, where Kubernetes reads it; nothing happens elsewhere.

    The kubelet makes the file, and shows at most 4096 bytes of it: the beginning of a text says
    what failed, its end why.
    """
    place = message_place()
    if place is not None:
        with contextlib.suppress(OSError):
            place.write_bytes(_shortened(text.strip().encode(errors="replace")))


def message_place() -> Path | None:
    """Return the file for `leave_message`, None where there is none."""
    place = Path(os.environ.get(TERMINATION_VARIABLE) or TERMINATION_LOG)
    return place if place.is_file() else None


def _shortened(text: bytes) -> bytes:
    if len(text) <= _MOST_BYTES:
        return text
    gap = "\n…\n".encode()
    first = _MOST_BYTES // 4
    cut = text[:first] + gap + text[first + len(gap) - _MOST_BYTES :]
    # What was cut in the middle of a letter is left out.
    return cut.decode(errors="ignore").encode()
