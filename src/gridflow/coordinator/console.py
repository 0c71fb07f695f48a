"""What the driver shows and keeps of the tasks' output: log lines, files, one progress bar."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

from gridflow.coordinator.bar import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gridflow.spec.cluster import Task
    from gridflow.spec.place import Place
    from gridflow.wire.reports import Progress

#: What would move the cursor of a terminal, or do other things than print; colours may stay.
_MOVES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-ln-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[^\[\]]|"
    r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)


#: Of the tracebacks that were shown, so many are remembered.
_MOST_TRACEBACKS: Final = 100


class Console:
    """Print log lines with their task's name, keep them in files, draw the progress bar.

    No job fails for it: where nobody reads any more (``driver.py | head``) nothing is printed, and
    of a file that can't be written (a full disk) it is said once that it ends there.

    Parameters
    ----------
    tasks : sequence of Task
        By rank.
    folder : Path
        One ``<role>-<index>.log`` per task is written there.
    logs : {'all', 'chief', 'none'}
        Whose lines are shown.
    progress : bool
        Whether to draw the bar.
    """

    def __init__(
        self, tasks: Sequence[Task], folder: Path, *, logs: str = "all", progress: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = {task: folder / f"{task.role}-{task.index}.log" for task in tasks}
        self._tasks = tuple(tasks)
        self._files: dict[Task, IO[str]] = {
            task: path.open("a", encoding="utf-8") for task, path in self.paths.items()
        }
        shown = {"all": self._tasks, "chief": self._tasks[:1], "none": ()}[logs]
        self._shown = frozenset(shown)
        self._width = max(len(str(task)) for task in tasks)
        self._bar = ProgressBar(self._tasks) if progress else None
        self._is_read = True
        self._tracebacks: dict[tuple[str, ...], Task] = {}
        self._lock = threading.Lock()

    def log(self, task: Task, lines: Sequence[str]) -> None:
        """Take a task's lines, in its own order."""
        with self._lock:
            self._keep(task, lines)
            if task in self._shown:
                prefix = f"[{task}]".ljust(self._width + 2)
                shown = self._without_echoes(task, [as_printed(line) for line in lines])
                self._write("\n".join(f"{prefix} {line}" for line in shown))

    def say(self, text: str) -> None:
        """Print a line of the coordinator's own."""
        with self._lock:
            self._write(f"[gridflow] {text}")

    def progress(self, rank: int, report: Progress) -> None:
        """Move the bar."""
        with self._lock:
            if self._bar is not None and self._is_read:
                with self._unless_nobody_reads():
                    self._bar.update(rank, report)

    def epoch(self, epoch: int, logs: dict[str, float]) -> None:
        """Show an epoch's results."""
        with self._lock:
            if self._bar is not None:
                self._close_epoch()
                self._write(f"[gridflow] epoch {epoch + 1}: {_values(logs)}")

    def evaluation(self, place: Place, logs: dict[str, float]) -> None:
        """Show what the evaluator found of a checkpoint."""
        self.say(f"evaluation after {place}: {_values(logs)}")

    def close(self) -> None:
        """Close bar and files."""
        with self._lock:
            self._close_epoch()
            for file in self._files.values():
                with contextlib.suppress(OSError):  # the disk is full: what was written stays
                    file.close()

    def _without_echoes(self, task: Task, lines: Sequence[str]) -> list[str]:
        """Return the lines with a reference for each traceback that was shown."""
        shown: list[str] = []
        at = 0
        while at < len(lines):
            end = _end_of_traceback(lines, at)
            block = tuple(lines[at:end])
            if len(self._tracebacks) > _MOST_TRACEBACKS:
                self._tracebacks.clear()
            first = self._tracebacks.get(block)
            if first is None:
                shown += block
            else:
                whose = "before" if first == task else f"that of {first}"
                shown.append(f"(the same traceback as {whose})")
            if len(block) > 1:
                self._tracebacks.setdefault(block, task)
            at = end
        return shown

    def _keep(self, task: Task, lines: Sequence[str]) -> None:
        file = self._files.get(task)
        if file is None:
            return
        try:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
        except OSError as error:
            del self._files[task]
            with contextlib.suppress(OSError):
                file.close()
            self._write(
                f"[gridflow] {task}: its lines are no longer kept in {self.paths[task]}: "
                f"{error.strerror or error}"
            )

    def _close_epoch(self) -> None:
        if self._bar is not None:
            with self._unless_nobody_reads():
                self._bar.close_epoch()

    def _write(self, text: str) -> None:
        if not self._is_read:
            return
        with self._unless_nobody_reads():
            if self._bar is not None:
                self._bar.write(text)
            else:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()

    @contextlib.contextmanager
    def _unless_nobody_reads(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # a broken pipe, a closed file
            self._is_read = False


def as_printed(line: str) -> str:
    r"""Return what a terminal shows of a line in the end, without what would move its cursor.

    Bars that a task draws by itself are one line, of which each state writes over the last.

    Examples
    --------
    >>> as_printed(" 10%|#  \r 20%|## \x1b[A\r")
    ' 20%|## '
    """
    states = [state for state in line.split("\r") if state]
    return _MOVES.sub("", states[-1] if states else "")


def _end_of_traceback(lines: Sequence[str], at: int) -> int:
    """Return where the traceback ends that begins at a line; the next line if none does."""
    if not lines[at].startswith("Traceback (most recent call last)"):
        return at + 1
    for end in range(at + 1, len(lines)):
        if lines[end][:1].strip():  # the exception itself
            return end + 1
    return at + 1  # its end comes later, with other lines


def _values(logs: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.5g}" for name, value in logs.items())
