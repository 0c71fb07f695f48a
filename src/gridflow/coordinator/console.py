"""What the driver shows and keeps of the tasks' output: log lines, files, one progress bar."""

from __future__ import annotations

import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tqdm import tqdm

    from gridflow.cluster import Task


class Console:
    """Print log lines with their task's name, keep them in files, draw the progress bar.

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
        self._bar: _Bar | None = _Bar(self._tasks) if progress else None
        self._lock = threading.Lock()

    def log(self, task: Task, lines: Sequence[str]) -> None:
        """Take a task's lines, in its own order."""
        with self._lock:
            file = self._files[task]
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            if task in self._shown:
                prefix = f"[{task}]".ljust(self._width + 2)
                self._write("\n".join(f"{prefix} {line}" for line in lines))

    def say(self, text: str) -> None:
        """Print a line of the coordinator's own."""
        with self._lock:
            self._write(f"[gridflow] {text}")

    def progress(self, rank: int, report: dict[str, Any]) -> None:
        """Move the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(rank, report)

    def epoch(self, epoch: int, logs: dict[str, float]) -> None:
        """Show an epoch's results."""
        with self._lock:
            if self._bar is not None:
                self._bar.close_epoch()
                self._write(f"[gridflow] epoch {epoch + 1}: {_values(logs)}")

    def evaluation(self, epoch: int, step: int, logs: dict[str, float]) -> None:
        """Show what the evaluator found of a checkpoint."""
        where = f"epoch {epoch + 1}, step {step}" if step else f"epoch {epoch}"
        self.say(f"evaluation after {where}: {_values(logs)}")

    def close(self) -> None:
        """Close bar and files."""
        with self._lock:
            if self._bar is not None:
                self._bar.close_epoch()
            for file in self._files.values():
                file.close()

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text)
        else:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()


def _values(logs: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.5g}" for name, value in logs.items())


class _Bar:
    """One bar for the group: the slowest rank decides where it stands."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._bar: tqdm[Any] | None = None
        self._epoch = -1
        self._steps: dict[int, int] = {}
        self._rows = 0
        self._began = 0.0

    def write(self, text: str) -> None:
        from tqdm import tqdm

        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()

    def update(self, rank: int, report: dict[str, Any]) -> None:
        if report["phase"] != "train":
            return
        if report["epoch"] != self._epoch:
            self._open(report["epoch"], report.get("steps_per_epoch"))
        self._steps[rank] = report["step"]
        self._rows += report["rows"]
        if self._bar is None:
            return
        slowest = min(self._steps, key=lambda each: self._steps[each])
        seconds = max(time.monotonic() - self._began, 1e-9)
        words = {name: f"{value:.4g}" for name, value in (report.get("logs") or {}).items()}
        if self._rows:
            words["rows/s"] = f"{self._rows / seconds:,.0f}"
        if len(self._steps) > 1:
            words["slowest"] = str(self._tasks[slowest])
        self._bar.set_postfix(words, refresh=False)
        self._bar.update(max(0, self._steps[slowest] - self._bar.n))

    def _open(self, epoch: int, total: int | None) -> None:
        from tqdm.auto import tqdm

        self.close_epoch()
        self._epoch, self._began = epoch, time.monotonic()
        self._steps, self._rows = {}, 0
        # Off a terminal a bar would only litter the log; the epoch's line is printed all the same.
        shown = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._bar = tqdm(
            total=total,
            desc=f"epoch {epoch + 1}",
            unit="step",
            disable=not shown,
            leave=False,
            dynamic_ncols=True,
        )

    def close_epoch(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
