"""The progress bar: below the lines of a terminal, or in a place of its own in a notebook."""

from __future__ import annotations

import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tqdm import tqdm

    from gridflow.spec.cluster import Task
    from gridflow.wire.reports import Progress

#: Of the bar in a notebook, whose width can't be known.
_NOTEBOOK_COLUMNS: Final = 100
_NOTEBOOK_SECONDS: Final = 0.5


class ProgressBar:
    """One bar for the group: the slowest of the ranks that are in the chief's epoch moves it.

    Parameters
    ----------
    tasks : sequence of Task
        By rank.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._bar: tqdm[Any] | None = None
        self._place = _place()
        self._leader = len(tasks)
        self._epoch = -1
        self._steps: dict[int, int] = {}
        self._rows = 0
        self._began = 0.0

    def write(self, text: str) -> None:
        """Print lines above the bar."""
        if self._bar is None:
            _print(text)
            return
        with self._bar.external_write_mode(file=sys.stdout):
            _print(text)  # flushed before the bar is drawn again below

    def update(self, rank: int, report: Progress) -> None:
        """Take a rank's report of a step."""
        if report.phase != "train" or self._place is None:
            return
        self._leader = min(self._leader, rank)
        epoch, step = report.epoch, report.step
        if rank == self._leader and (epoch != self._epoch or step < self._steps.get(rank, 0)):
            self._open(epoch, report.steps_per_epoch)
        if epoch != self._epoch:
            return  # it is behind, or trains by itself: a bar can show one epoch
        self._steps[rank] = step
        self._rows += report.rows
        if self._bar is None:
            return
        slowest = min(self._steps, key=lambda each: self._steps[each])
        seconds = max(time.monotonic() - self._began, 1e-9)
        words = {name: f"{value:.4g}" for name, value in report.logs.items()}
        if self._rows:
            words["rows/s"] = f"{self._rows / seconds:,.0f}"
        if len(self._steps) > 1:
            words["slowest"] = str(self._tasks[slowest])
        self._bar.set_postfix(words, refresh=False)
        self._bar.update(max(0, self._steps[slowest] - self._bar.n))

    def close_epoch(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _open(self, epoch: int, total: int | None) -> None:
        from tqdm import tqdm

        self.close_epoch()
        self._epoch, self._began = epoch, time.monotonic()
        self._steps, self._rows = {}, 0
        options: dict[str, Any] = {"dynamic_ncols": True}
        if isinstance(self._place, _Cell):
            options = {
                "file": self._place,
                "ncols": _NOTEBOOK_COLUMNS,
                "ascii": False,
                "mininterval": _NOTEBOOK_SECONDS,
            }
        options |= {"total": total, "desc": f"epoch {epoch + 1}", "unit": "step", "leave": False}
        self._bar = tqdm(**options)


class _Cell:
    """A line in a notebook's output that is written anew in its place.

    A bar in the standard streams would be torn apart there: each line of the other stream begins a
    new piece of output, and tqdm's own widget needs a package that may be missing.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def write(self, text: str) -> None:
        """Show what a terminal would show in its line."""
        shown = {"text/plain": text.strip("\r\n ")}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def flush(self) -> None:
        """Do nothing: it is shown by then."""


def _place() -> _Cell | str | None:
    """Return where a bar can be drawn that doesn't litter: a notebook, ``"terminal"``, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        from IPython.display import display

        return _Cell(display)
    return "terminal" if sys.stderr.isatty() and not _is_piped(sys.stdout) else None


def _is_piped(stream: Any) -> bool:
    """Return whether what is printed may come to the terminal past the bar, as with ``| tee``."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
