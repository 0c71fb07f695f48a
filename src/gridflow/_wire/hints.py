"""Hints about the causes of failures, from an exception or the last log lines. Pure.

Also tells consequences from causes: when one task dies, its peers' collective operations fail with
connection errors, which don't say why.
"""

from __future__ import annotations

import re
import signal
from typing import Final

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
