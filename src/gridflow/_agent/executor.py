"""An agent's executor: which one it is, and whether its JVM is frozen.

Spark itself notices a frozen executor after two minutes (``spark.network.timeout``). The agent, a
child process of the executor, can see more: the state of the process, and a thread of Spark that
only checks the Python worker every two seconds. While the JVM stops all Java threads, as in a long
garbage collection or a heap dump, that thread keeps sleeping.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gridflow._files import procfs
from gridflow._wire.clock import Clock

_EXECUTOR: Final = b"--executor-id"
#: `PythonRunner.MonitorThread`, "Worker Monitor for python3", as the kernel cuts its name.
_MONITOR: Final = "Worker Monitor"
_MONITOR_SECONDS: Final = 2.0
#: Between two searches for it, if it is missing.
_LOOK_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Executor:
    """A Spark executor.

    `name`: Spark's id of it.
    `pid`: Process id of its JVM.
    """

    name: str
    pid: int


def executor_above(pid: int) -> Executor | None:
    """Return the executor that a process belongs to.

    Spark doesn't tell its Python workers.
    """
    while pid > 1:
        words = procfs.command_line(pid)
        if _EXECUTOR in words[:-1]:
            name = words[words.index(_EXECUTOR) + 1].decode(errors="replace")
            return Executor(name, pid)
        pid = procfs.parent(pid)
    return None


class ExecutorWatch:
    """Detects an executor that is frozen for too long.

    It detects nothing if the kernel doesn't show the process.

    `patience`: How long it may be frozen, in seconds.
    """

    def __init__(self, executor: Executor, patience: float) -> None:
        self._executor, self._patience = executor, patience
        self._began = procfs.began(executor.pid)
        # What stops both, such as suspending the machine, isn't a failure of the executor.
        self._clock = Clock(patience / 2)
        self._stopped_since: float | None = None
        self._asleep_since: float | None = None
        self._monitor: Path | None = None
        self._look_at = 0.0
        self._switches = ""

    def look(self) -> str:
        """Return what is wrong with the executor, or an empty string."""
        now, pid = self._clock.now(), self._executor.pid
        if not self._began or procfs.began(pid) != self._began:
            return ""  # it has ended, which is noticed elsewhere
        if procfs.is_stopped(pid):
            self._asleep_since = None
            self._stopped_since = now if self._stopped_since is None else self._stopped_since
            return self._describe(now - self._stopped_since, "it is stopped (SIGSTOP)")
        self._stopped_since = None
        if not self._sleeps_on(now):
            self._asleep_since = None
            return ""
        self._asleep_since = now if self._asleep_since is None else self._asleep_since
        seconds = now - self._asleep_since - _MONITOR_SECONDS
        return self._describe(seconds, "it runs no Java code, as in a long garbage collection")

    def _describe(self, seconds: float, what: str) -> str:
        if seconds <= self._patience:
            return ""
        name, pid = self._executor.name, self._executor.pid
        return (
            f"the JVM of its executor {name} (pid {pid}) has been frozen for {self._patience:g} "
            f"seconds (Deadlines.heartbeat): {what}"
        )

    def _sleeps_on(self, now: float) -> bool:
        """Return whether the thread that wakes every two seconds has slept since the last check."""
        if self._monitor is None and now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._monitor = _find_monitor(self._executor.pid)
        fields = _status(self._monitor) if self._monitor is not None else {}
        if fields.get("Name") != _MONITOR:
            self._monitor = None  # with the task that it looked after
            return False
        before, self._switches = self._switches, fields["voluntary_ctxt_switches"]
        # A thread that waits for a processor isn't asleep.
        return fields["State"].startswith("S") and self._switches == before


def _find_monitor(pid: int) -> Path | None:
    try:
        threads = [Path(f"/proc/{pid}/task/{name}") for name in os.listdir(f"/proc/{pid}/task")]  # noqa: PTH208 (names alone)
    except OSError:
        return None
    return next((each for each in threads if _status(each).get("Name") == _MONITOR), None)


def _status(thread: Path) -> dict[str, str]:
    """Return the kernel's status of a thread; empty if it has ended."""
    try:
        lines = (thread / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
