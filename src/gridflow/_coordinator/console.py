"""The tasks' output in the driver: printed log lines, log files, one progress bar."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from gridflow._coordinator.outlet import Outlet, show
from gridflow._coordinator.progress_bar import ProgressBar
from gridflow._spec.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from pathlib import Path

    from gridflow._coordinator.observing import Observer
    from gridflow._spec.cluster import Task
    from gridflow._spec.place import Place

#: Characters that wait for the terminal. What it doesn't take is still in the files.
_MOST_SHOWN: Final = 8 << 20
#: Extra room for the coordinator's own messages.
_OWN_ROOM: Final = 1 << 20
#: Characters that wait for the disk; none is dropped while the disk makes progress.
_MOST_KEPT: Final = 16 << 20
#: What a line takes beside its characters.
_LINE_COST: Final = 64
#: Seconds. A terminal may be one that somebody has stopped, and nobody waits for long to see what
#: is in the files; a disk that does nothing at all for that long is broken.
_TERMINAL_PATIENCE, _TERMINAL_LONGEST = 2.0, 10.0
_DISK_PATIENCE, _DISK_LONGEST = 5.0, 60.0
_DISK_CHUNK: Final = 1 << 20
_LINE_END: Final = ord("\n")
#: How many of the shown tracebacks are remembered.
_MOST_TRACEBACKS: Final = 100


class Console:
    """Print log lines with their task's name, keep them in files, draw the progress bar.

    No method waits for the terminal or the disk; `close` does, for a limited time.

    Output never fails a job. What the terminal doesn't take is dropped and counted. When the reader
    has gone (``driver.py | head``), nothing more is printed. A file that can't be written (a full
    disk) is reported once, and the lines missing from it are counted in it.

    `tasks`: By rank.
    `folder`: One ``<role>-<index>.log`` per task is written there; None: lines are only shown.
    `logs` ({'all', 'chief', 'none'}): Whose lines are printed.
    `progress`: Whether to draw the bar.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        folder: Path | None,
        *,
        logs: str = "all",
        progress: bool = True,
    ) -> None:
        self._tasks = tuple(tasks)
        self._warnings: dict[object, str] = {}
        self._files = _LogFiles(self._tasks, folder, self.warn)
        self.paths = self._files.paths
        shown = {"all": self._tasks, "chief": self._tasks[:1], "none": ()}[logs]
        self._shown = frozenset(shown)
        self._width = max((len(str(task)) for task in tasks), default=0)
        self._terminal = Outlet(
            "gridflow-console",
            limit=_MOST_SHOWN,
            patience=_TERMINAL_PATIENCE,
            longest=_TERMINAL_LONGEST,
            on_gap=self._miss,
        )
        # Below: used only by the terminal's thread.
        self._bar = ProgressBar(self._tasks, self._terminal.moved) if progress else None
        self._missing = 0
        self._tracebacks: dict[int, Task] = {}

    @property
    def drawn(self) -> tuple[Observer, Outlet] | None:
        """The bar, with the outlet in whose thread it is drawn."""
        return None if self._bar is None else (self._bar, self._terminal)

    @property
    def has_room(self) -> bool:
        """Whether lines can be taken, or holding them back is pointless."""
        return self._files.outlet.has_room

    def log(self, task: Task, lines: Sequence[str]) -> None:
        """Take a task's lines, in order."""
        cost = sum(map(len, lines)) + _LINE_COST * len(lines)
        self._files.keep(task, lines, cost)
        if task in self._shown:
            self._terminal.put(None, partial(self._log, task, lines), cost, len(lines))

    def say(self, text: str) -> None:
        """Print a message of the coordinator."""
        self._tell(partial(self._write, f"[gridflow] {printable(text)}"), len(text), lines=1)

    def warn(self, what: object, text: str) -> None:
        """Print what went wrong, once for each thing, and keep the latest for the result."""
        is_new = what not in self._warnings
        self._warnings[what] = text
        if is_new:
            self.say(text)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong without failing the job."""
        return tuple(self._warnings.values())

    def epoch(self, epoch: int, logs: dict[str, float]) -> None:
        """Show an epoch's results."""
        if self._bar is not None:
            self.say(f"epoch {epoch + 1}: {_values(logs)}")

    def evaluation(self, place: Place, logs: dict[str, float]) -> None:
        """Show the evaluator's metrics of a checkpoint."""
        self.say(f"evaluation after {place}: {_values(logs)}")

    def wait_for_room(self) -> None:
        """Wait until the terminal has caught up, but not for a stopped one."""
        self._terminal.wait_for_room()

    def close(self) -> None:
        """Write what is queued, close bar and files; give up on a stuck terminal or disk."""
        self._files.close()
        if self._bar is not None:
            self._tell(self._bar.close)
        self._terminal.close()

    def _tell(self, action: Callable[[], None], cost: int = 0, lines: int = 0) -> None:
        """Queue an action, for which there is room even if the tasks print too much."""
        limit = _MOST_SHOWN + _OWN_ROOM
        self._terminal.put("gridflow", action, cost + _LINE_COST, lines, limit)

    # In the terminal's thread --------------------------------------------------------------------

    def _log(self, task: Task, lines: Sequence[str]) -> None:
        prefix = f"[{task}]".ljust(self._width + 2)
        # A line may contain other line endings, such as those of another program.
        whole = [as_printed(part) for line in lines for part in line.split("\n")]
        shown = self._without_echoes(task, whole)
        self._write("\n".join(f"{prefix} {line}" for line in shown), len(lines))

    def _without_echoes(self, task: Task, lines: Sequence[str]) -> list[str]:
        """Return the lines, with a reference in place of each traceback shown before."""
        shown: list[str] = []
        at = 0
        while at < len(lines):
            end = _end_of_traceback(lines, at)
            if end == at + 1:
                shown.append(lines[at])
                at = end
                continue
            block = lines[at:end]
            if len(self._tracebacks) > _MOST_TRACEBACKS:
                self._tracebacks.clear()
            known = hash(tuple(block))
            first = self._tracebacks.get(known)
            if first is None:
                shown += block
                self._tracebacks[known] = task
            else:
                whose = "before" if first == task else f"that of {first}"
                shown.append(f"(the same traceback as {whose})")
            at = end
        return shown

    def _miss(self, key: object, lines: int) -> None:
        del key
        self._missing += lines
        self._write("", 0)

    def _write(self, text: str, lines: int = 1) -> None:
        if self._missing:
            where = f" (all of them are in {self._files.folder})" if self._files.folder else ""
            note = f"[gridflow] lines not shown: {self._missing:,}{where}"
            text = f"{note}\n{text}" if text else note
        try:
            if self._bar is not None:
                self._bar.write(text)
            else:
                show(sys.stdout, text + "\n", self._terminal.moved)
        except Exception:  # noqa: BLE001 (whatever stands in sys.stdout: no job fails for it)
            self._missing += lines
        else:
            self._missing = 0


class _LogFiles:
    """A log file for each task, written in a thread of its own.

    `folder`: None: no files.
    `warn`: Tells the user what went wrong with a task's file, or all.
    """

    def __init__(
        self, tasks: Sequence[Task], folder: Path | None, warn: Callable[[object, str], None]
    ) -> None:
        self.folder, self._warn = folder, warn
        self.paths: dict[Task, Path] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.paths = {task: folder / f"{task.role}-{task.index}.log" for task in tasks}
        self.outlet = Outlet(
            "gridflow-logs",
            limit=_MOST_KEPT,
            patience=_DISK_PATIENCE,
            longest=_DISK_LONGEST,
            on_gap=self._miss,
        )
        # Unbuffered: what a full disk has refused isn't written again at the end.
        self._files: dict[Task, FileIO] = {
            task: path.open("ab", buffering=0) for task, path in self.paths.items()
        }
        self._missing: dict[Task, int] = {}
        #: Tasks whose last line is incomplete.
        self._torn: set[Task] = set()

    def keep(self, task: Task, lines: Sequence[str], cost: int) -> None:
        """Take lines; they are dropped only while the disk is stuck."""
        if task not in self._files:
            return
        is_stuck = self.outlet.is_stuck
        limit = None if is_stuck else sys.maxsize
        self.outlet.put(task, partial(self._write, task, lines), cost, len(lines), limit)
        if is_stuck:
            self._warn("logs", f"log files are delayed: the disk of {self.folder} is stuck")

    def close(self) -> None:
        """Write what waits, and close the files."""
        if not self.outlet.close():
            words = f"the ends of the log files are missing: the disk of {self.folder} is stuck"
            self._warn("ends of logs", words)
            return  # they are in use
        for file in self._files.values():
            with contextlib.suppress(OSError):  # NFS reports some errors only now
                file.close()

    # In their thread -----------------------------------------------------------------------------

    def _miss(self, task: Task, lines: int) -> None:
        self._missing[task] = self._missing.get(task, 0) + lines
        self._write(task, [])

    def _write(self, task: Task, lines: Sequence[str]) -> None:
        file, missing = self._files[task], self._missing.pop(task, 0)
        notes = [f"[gridflow] lines missing here: {missing:,}"] if missing else []
        text = "".join(f"{line}\n" for line in (*notes, *lines))
        if task in self._torn:
            text = "\n" + text
        data, is_begun = text.encode("utf-8", "backslashreplace"), False
        try:
            while data:
                written = file.write(data[:_DISK_CHUNK])
                (self._torn.discard if data[written - 1] == _LINE_END else self._torn.add)(task)
                data, is_begun = data[written:], True
                self.outlet.moved()
        except OSError as error:
            lost = min(len(lines), data.count(b"\n"))
            self._missing[task] = lost if is_begun else missing + len(lines)
            why = error.strerror or error
            self._warn(task, f"{task}: lines are missing from {self.paths[task]}: {why}")


def as_printed(line: str) -> str:
    r"""Return what a terminal finally shows of a line, without cursor movements.

    A progress bar that a task draws is one line, in which each state overwrites the last.

    Examples
    --------
    >>> as_printed(" 10%|#  \r 20%|## \x1b[A\r")
    ' 20%|## '
    """
    states = [state for state in line.split("\r") if state]
    return printable(states[-1]) if states else ""


def _end_of_traceback(lines: Sequence[str], at: int) -> int:
    """Return where the traceback starting at a line ends; the next line if there is none."""
    if not lines[at].startswith("Traceback (most recent call last)"):
        return at + 1
    for end in range(at + 1, len(lines)):
        if lines[end][:1].strip():  # the exception itself
            return end + 1
    return at + 1  # its end comes later, with other lines


def _values(logs: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.5g}" for name, value in logs.items())
