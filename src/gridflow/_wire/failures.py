"""Failures of tasks, and the attempts of a job. Pure data.

Hints about the causes come from an exception or the last log lines. They also tell consequences
from causes: when one task dies, its peers' collective operations fail with connection errors, which
don't say why.
"""

from __future__ import annotations

import re
import signal
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


#: Messages of TensorFlow and its coordination service when a *peer* is gone.
_ECHOES: Final = re.compile(
    r"coordination service|coordinationservice|tasks are unhealthy|unhealthy tasks"
    r"|connection reset by peer|socket closed|collective ops is aborted|barrier.*(failed|timed out)"
    r"|failed to connect to all addresses|connection refused"
    r"|/job:\w+/replica.*(heartbeat|shut ?down)"
    r"|peer .* (closed|lost)|connection closed by peer"
    r"|gloo(?!\] rank \d+ is connected).*(connection|peer|time(d )?out)"  # not its greeting
    r"|distributedstoreerror|the graph couldn't be sorted.*cancel",
    re.IGNORECASE,
)
_ECHO_TYPES: Final = frozenset(
    {
        "UnavailableError",
        "PSUnavailableError",
        "AbortedError",
        "DeadlineExceededError",
        "CancelledError",
    }
)

#: Connections to something other than a peer: a database, a web service.
_FOREIGN_TYPES: Final = re.compile(
    r"(Connection(Refused|Reset|Aborted)?|BrokenPipe|Timeout|HTTP|URL|OS|Operational)Error\Z"
)
_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)", re.MULTILINE)
#: The same without the traceback's beginning: only a name with its module is certain.
_RAISED_BELOW: Final = re.compile(
    r"^(?:[A-Za-z_]\w*\.)+(\w+Error): (?!.*^\S+Error: )", re.MULTILINE | re.DOTALL
)

#: Messages about ranks that are in different operations, which can happen with all peers alive.
_APART: Final = re.compile(
    r"Collective instance \d+ expected|Shape mismatch in the collective instance"
    r"|different collective operations"
    r"|Inconsistent output shapes, got"
    r"|Is there a distributed collective mismatch",  # Gloo
    re.IGNORECASE,
)
_APART_HINT: Final = (
    "the ranks are in different operations: one has made more steps than another, or only one "
    "has read or saved the model. Base decisions on values that are the same on all ranks "
    "(epochs, logs), or send one rank's value to the others: ctx.broadcast(value)"
)
_HINTS: Final = (
    (
        re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'"),
        (
            "the tasks' Python has no module {0!r}: install it there, ship it with "
            "spark.addArtifact(..., pyfile=True) or --py-files, or put it next to the script, "
            "whose folder is sent to the tasks"
        ),
    ),
    (
        re.compile(r"Can't (?:pickle|get) .*attribute (?:lookup )?'?(\w+)'? on .*__main__"),
        (
            "in a task, __main__ is not your script or notebook, so multiprocessing can't find "
            "{0!r} there: put it into a module, and import it from that"
        ),
    ),
    (
        re.compile(r"(?:ResourceExhaustedError|OOM when allocating|MemoryError)"),
        (
            "out of memory: use smaller batches, or give the executors more memory "
            "(the training process uses spark.executor.memoryOverhead)"
        ),
    ),
    (
        re.compile(
            r"unable to lock file|Bad CRC-32|BadZipFile|FileExistsError|file signature not found"
            r"|truncated file",
            re.IGNORECASE,
        ),
        (
            "if several ranks write to this path, let only the chief write (if ctx.is_chief, or "
            "chief_only(callback)) and let the others wait in ctx.barrier(); or give each rank "
            "its own path, such as one in ctx.work_dir"
        ),
    ),
    (
        re.compile(r"No space left on device|\[Errno 28\]"),
        "a disk is full: give the tasks more space with Spool(dir=…) or spark.local.dir",
    ),
    (
        re.compile(r"must be initialized at the beginning|Collective ops must be configured at"),
        (
            "TensorFlow was used before its strategy was created: build datasets and models inside "
            "the training function, from ctx.strategy"
        ),
    ),
    (
        re.compile(
            r"Value for attr 'T' of (\w+) is not in the list[^;]*; NodeDef: {{node Collective"
        ),
        (
            "TensorFlow can't send variables of {0} from one worker to the others: let them be "
            "float32, as with the policy mixed_bfloat16 or mixed_float16"
        ),
    ),
)
_SIGNAL_HINTS: Final = {
    signal.SIGKILL: "the kernel or the cluster manager probably killed it because memory ran out: "
    "check dmesg, or raise spark.executor.memoryOverhead",
    signal.SIGSEGV: "native code crashed: the Python stack in the log shows where it was called",
    signal.SIGBUS: "a memory-mapped file was truncated, or its disk failed or is full: don't "
    "change files while they are read; make room for rows and in /dev/shm",
    signal.SIGABRT: "native code aborted: the log says why",
}


def hint_for(exception_type: str, text: str, exit_code: int | None = None) -> tuple[str, bool]:
    """Return a hint (empty if the cause isn't known) and whether the failure is a consequence.

    `exception_type`: Name of the exception's class; empty if the process died without one.
    `text`: The traceback, or the last log lines.
    `exit_code`: The exit code; minus the signal's number if the process was killed.
    """
    aborted = exit_code == -signal.SIGABRT
    if (exception_type or aborted) and _APART.search(text):
        return _APART_HINT, False
    echo = (exception_type in _ECHO_TYPES) or (
        (bool(exception_type) or aborted) and bool(_ECHOES.search(text))
    )
    if echo:
        return "", True
    for pattern, hint in _HINTS:
        found = pattern.search(text)
        if found:
            return hint.format(*found.groups()), False
    if exit_code is not None and exit_code < 0:
        return _SIGNAL_HINTS.get(signal.Signals(-exit_code), ""), False
    return "", False


def lost_a_peer(log: str) -> bool:
    """Return whether a program's last output says that it failed because a peer was gone.

    Only the type and text of an uncaught exception can say so. A program that catches it chooses
    its own exit code, which is trusted.

    `log`: The end of what the program printed.
    """
    _, found, after = log.rpartition(_TRACEBACK)
    raised = (_RAISED if found else _RAISED_BELOW).search(after)
    if raised is None or _FOREIGN_TYPES.match(raised.group(1)):
        return False
    return hint_for(raised.group(1), after[raised.start() :])[1]
