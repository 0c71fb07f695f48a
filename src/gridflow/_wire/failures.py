"""What is reported of tasks: failures, and the attempts that a job took. Pure data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from gridflow._spec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._spec.place import Place

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
#: Characters: an exception may hold an array's text, or a file's.
LONGEST_SUMMARY: Final = 4096
LONGEST_TRACEBACK: Final = 1 << 16


@dataclass(frozen=True)
class TaskFailure:
    """One failed task.

    Attributes
    ----------
    task : str
        Role and index, such as ``worker:1``.
    host : str
        Where it ran, empty when it never registered.
    kind : str
        One of `FailureKind`.
    summary : str
        One line that says what happened.
    generation : int
        The life of the group in which it happened, from 0.
    traceback : str
        The task's Python traceback or stack, empty if there is none.
    exit_code : int or None
        The process's exit code when it ended by itself.
    signal : str or None
        Name of the signal that killed the process.
    log_tail : tuple of str
        The task's last log lines.
    hint : str
        What to do about it where the cause is known.
    consequence : bool
        True when it looks like the echo of another task's failure (a lost connection).
    """

    task: str
    host: str
    kind: FailureKind
    summary: str
    generation: int = 0
    traceback: str = ""
    exit_code: int | None = None
    signal: str | None = None
    log_tail: tuple[str, ...] = ()
    hint: str = ""
    consequence: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskFailure:
        """Read `to_dict`'s data back."""
        return cls(**{**data, "log_tail": tuple(data.get("log_tail", ()))})

    def describe(self) -> str:
        """Return the failure as the text of an error: what, where, traceback, logs, hint.

        It holds nothing that a terminal obeys.
        """
        where = f" on {self.host}" if self.host else ""
        lines = [f"{self.task}{where}: {self.summary}"]
        if self.exit_code is not None:
            lines.append(f"Exit code: {self.exit_code}")
        if self.signal is not None:
            lines.append(f"Signal: {self.signal}")
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        if self.traceback:
            lines += ["Traceback of the task:", _indent(self.traceback.rstrip().splitlines())]
        tail = self._tail_without_traceback()
        if tail:
            lines += [f"Its last {len(tail)} log lines:", _indent(tail)]
        return printable("\n".join(lines))

    def _tail_without_traceback(self) -> tuple[str, ...]:
        """Return the log lines but for the traceback, which is told by itself.

        It was printed last, so it may have pushed its own beginning out of the tail.
        """
        told, tail = self.traceback.rstrip().splitlines(), self.log_tail
        if not told:
            return tail
        for first, last in ((i, i + len(told)) for i in range(len(tail) - len(told) + 1)):
            if list(tail[first:last]) == told:
                return (*tail[:first], *tail[last:])
        for length in range(min(len(told), len(tail)), 0, -1):
            if list(tail[:length]) == told[-length:]:
                return tail[length:]
        return tail


@dataclass(frozen=True)
class Attempt:
    """One generation of the job.

    Attributes
    ----------
    generation : int
        From 0.
    seconds : float
        How long it lived.
    failure : TaskFailure or None
        What ended it; None if it ended well.
    resumed_at : Place or None
        The place in the training of the checkpoint that it started from: fit, epoch and step;
        None for a fresh start.
    """

    generation: int
    seconds: float
    failure: TaskFailure | None = None
    resumed_at: Place | None = None

    @property
    def is_preempted(self) -> bool:
        """Whether it ended as an executor was taken back with notice."""
        return self.failure is not None and self.failure.kind == PREEMPTED

    @property
    def resumed_from(self) -> tuple[int, int] | None:
        """Epoch and step of `resumed_at`."""
        return None if self.resumed_at is None else (self.resumed_at.epoch, self.resumed_at.step)


def _indent(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"    {line}" for line in lines)
