"""The exit codes of gridflow's processes, one for each kind of end: the only table of them.

From 1 to 127 a failure is permanent: the same again fails again. From 128 another try may succeed,
as after a signal. Below 128 they follow sysexits.h where that has a word for it; what is worth
another try has the number of sysexits.h and 128. `gridflow._spec.failures` says which error has
which.
"""

from __future__ import annotations

import contextlib
import enum
import os
from pathlib import Path
from typing import Final, Literal

__all__ = [
    "PREEMPTED",
    "SIGNALLED",
    "Exit",
    "FailureKind",
    "leave_message",
    "message_place",
    "of_program",
]

FailureKind = Literal[
    "exception",
    "exit",
    "signal",
    "stopped",
    "lost",
    "preempted",
    "data",
    "environment",
    "start",
    "steps",
    "gpus",
]
#: The one kind that is announced: the policies count it apart.
PREEMPTED: Final = "preempted"
#: What a shell adds to the number of the signal that ended a process.
SIGNALLED: Final = 128
#: Where the kubelet reads why a container ended; another one by this variable.
TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_VARIABLE: Final = "GRIDFLOW_TERMINATION_LOG"
#: The kubelet reads no more of it.
_MOST_BYTES: Final = 4096


class Exit(enum.IntEnum):
    """How a process of gridflow ended."""

    SUCCEEDED = 0
    #: Something that has no kind of its own.
    OTHER = 1
    COMMAND_LINE = 2
    #: EX_USAGE: what was given can't be used; in a container, the job is wrong.
    USAGE = 64
    #: EX_DATAERR: rows or columns that can't be fed.
    DATA = 65
    #: EX_SOFTWARE: the program failed by itself: it raised, or ended with a code below 128.
    PROGRAM = 70
    #: EX_OSERR: the coordinator can't listen where it is to, or isn't reached there.
    NETWORK = 71
    #: EX_CANTCREAT: a job of this name, or a run of this id, is there.
    EXISTS = 73
    #: EX_NOPERM: another user owns a folder of gridflow's, or can write to it.
    UNSAFE = 77
    #: EX_CONFIG: a package is missing, or the tasks have other versions.
    ENVIRONMENT = 78
    #: Another task has failed for good, so this one was ended, too.
    GIVEN_UP = 113
    #: A limit of the whole job has passed; timeout(1) ends so, too.
    OVERDUE = 124
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    #: Ctrl-C, or a job that was cancelled.
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    #: EX_UNAVAILABLE: an agent, executor, host or peer was gone.
    LOST = SIGNALLED + 69
    #: EX_SOFTWARE: the program was killed or frozen, or ended with a code of 128 and above.
    KILLED = SIGNALLED + 70
    #: EX_OSERR: too few slots or GPUs are there, or free.
    SLOTS = SIGNALLED + 71
    #: EX_IOERR: a rank made no step any more.
    STUCK = SIGNALLED + 74
    #: EX_TEMPFAIL: tasks did not come up in time, or a peer's name never resolved.
    TRY_AGAIN = SIGNALLED + 75

    @property
    def is_retryable(self) -> bool:
        """Whether another try may succeed."""
        return self >= SIGNALLED


#: What ``gridflow launch`` says beside the codes of its program.
_OF_LAUNCH: Final = frozenset(
    {Exit.SUCCEEDED, Exit.USAGE, Exit.GIVEN_UP, Exit.OVERDUE, Exit.LOST, Exit.TRY_AGAIN}
)


def of_program(code: int) -> int:
    """Return the exit code of a job whose program, or ``gridflow launch``, ended with a code."""
    if code in _OF_LAUNCH:
        return code
    return int(Exit.KILLED if code >= SIGNALLED else Exit.PROGRAM)


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
