"""Failures of tasks, and the attempts of a job. Pure data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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
        Role and index, such as ``worker:1``; ``Spark`` for a launch that failed there.
    host : str
        Where it ran; empty if it never registered.
    kind : str
        One of `FailureKind`.
    summary : str
        What happened, in one line.
    generation : int
        The attempt in which it happened, from 0.
    traceback : str
        The task's Python traceback or stack; empty if there is none.
    exit_code : int or None
        The process's exit code, if it exited by itself.
    signal : str or None
        Name of the signal that killed the process.
    log_tail : tuple of str
        The task's last log lines.
    hint : str
        What to do about it, if the cause is known.
    consequence : bool
        Whether it looks like a consequence of another task's failure (a lost connection).
    stacks : dict of str to str
        Where all tasks were, if they were asked: their Python stacks.
    spark_errors : tuple of str
        The names of the exceptions and error conditions that Spark reported, if a launch failed.
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
    stacks: dict[str, str] = field(default_factory=dict, hash=False)
    spark_errors: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskFailure:
        """Read `to_dict`'s data back."""
        lists = {name: tuple(data.get(name, ())) for name in ("log_tail", "spark_errors")}
        return cls(**{**data, **lists})

    def describe(self) -> str:
        """Return the failure as the text of an error: what, where, traceback, logs, hint.

        Control characters of terminals are replaced.
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
        """Return the log lines without the traceback, which is shown by itself.

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
        How long it ran.
    failure : TaskFailure or None
        What ended it; None if it succeeded, or another number of workers went on.
    resumed_at : Place or None
        Fit, epoch and step of the checkpoint that it resumed from; None for a fresh start.
    replaced : tuple of TaskFailure
        Why processes of workers were replaced while the others went on
        (``Restarts(max_replacements=)``).
    sizes : tuple of (float, int)
        With how many workers the group went on, and from which second on: where workers come and go
        (``num_workers=(2, 8)``).
    """

    generation: int
    seconds: float
    failure: TaskFailure | None = None
    resumed_at: Place | None = None
    replaced: tuple[TaskFailure, ...] = ()
    sizes: tuple[tuple[float, int], ...] = ()

    @property
    def is_preempted(self) -> bool:
        """Whether it ended because an executor was preempted with notice."""
        return self.failure is not None and self.failure.kind == PREEMPTED

    @property
    def resumed_from(self) -> tuple[int, int] | None:
        """Epoch and step of `resumed_at`."""
        return None if self.resumed_at is None else (self.resumed_at.epoch, self.resumed_at.step)


def _indent(lines: list[str] | tuple[str, ...]) -> str:
    return "\n".join(f"    {line}" for line in lines)
