"""The progress bar: below the lines of a terminal, or in its own output of a notebook."""

from __future__ import annotations

import contextlib
import html
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator import bottleneck
from gridflow._coordinator.observing import Observer
from gridflow._coordinator.outlet import show
from gridflow._spec.printable import is_terminal, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tqdm import tqdm

    from gridflow._coordinator.progress import TaskProgress
    from gridflow._spec.cluster import Task
    from gridflow._wire.failures import TaskFailure

#: Width of the bar in a notebook, whose real width is unknown.
_NOTEBOOK_COLUMNS: Final = 100
_NOTEBOOK_SECONDS: Final = 0.5


class ProgressBar(Observer):
    """One bar for the group; it shows the slowest of the ranks in the chief's epoch.

    `tasks`: By rank.
    `moved`: Called after each part is written.
    """

    def __init__(self, tasks: Sequence[Task], moved: Callable[[], None]) -> None:
        self._ranks = {str(task): rank for rank, task in enumerate(tasks)}
        self._moved = moved
        self._bar: tqdm[Any] | None = None
        self._place = _place()
        self._leader = len(tasks)
        self._epoch = -1
        #: By task: the steps in this epoch, the rows so far, and where the time went.
        self._steps: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._spent: dict[str, Mapping[str, float]] = {}
        #: Tasks without which the others train.
        self._away: set[str] = set()
        self._began, self._rows_before = 0.0, 0

    def write(self, text: str) -> None:
        """Print lines above the bar."""
        if self._bar is None or not isinstance(self._place, _Drawing):
            show(sys.stdout, text + "\n", self._moved)
            return
        self._bar.clear()
        self._put_up()
        show(sys.stdout, text + "\n", self._moved)
        self._bar.refresh()
        self._put_up()

    def task(self, name: str, state: str, host: str) -> None:
        """Wait for no steps of a task that is away."""
        del host
        if state == "back":
            self._away.discard(name)
        elif state == "away":
            self._away.add(name)
            for known in (self._steps, self._spent):
                known.pop(name, None)
            self._leader = len(self._ranks)  # the first of those that report steps

    def restart(self, failure: TaskFailure) -> None:
        """Wait for all tasks again."""
        del failure
        self._away.clear()

    def progress(self, task: str, progress: TaskProgress) -> None:
        """Show a task's step."""
        if progress.phase != "train" or self._place is None or task in self._away:
            return
        rank = self._ranks[task]
        self._leader = min(self._leader, rank)
        _, epoch, step = progress.place
        if rank == self._leader and (epoch != self._epoch or step < self._steps.get(task, 0)):
            self._open(epoch, progress.steps_per_epoch)
        self._rows[task] = progress.rows
        if epoch != self._epoch:
            return  # it is behind, or trains by itself: a bar shows only one epoch
        self._steps[task] = step
        if self._bar is None:
            return
        slowest = min(self._steps, key=lambda each: self._steps[each])
        seconds = max(time.monotonic() - self._began, 1e-9)
        # Names come from the program: they mustn't move the bar to another line.
        words = {
            printable(" ".join(name.split())): f"{value:.4g}"
            for name, value in progress.logs.items()
        }
        if rows := sum(self._rows.values()) - self._rows_before:
            words["rows/s"] = f"{rows / seconds:,.0f}"
        if self._away:
            words["workers"] = f"{len(self._ranks) - len(self._away)} of {len(self._ranks)}"
        if len(self._steps) > 1:
            words["slowest"] = slowest
        self._spent[task] = progress.seconds
        found = bottleneck.find(self._spent)
        if found is not None and found.cause != "computing":
            words["held back by"] = f"{found.cause} {found.share:.0%}"
        self._bar.set_postfix(words, refresh=False)
        self._bar.update(max(0, self._steps[slowest] - self._bar.n))
        self._put_up()

    def epoch(self, number: int, values: Mapping[str, float]) -> None:
        """Take the bar away until the next step."""
        del number, values
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
            self._put_up()

    def _put_up(self) -> None:
        if isinstance(self._place, _Drawing):
            with contextlib.suppress(OSError, ValueError):  # a broken pipe, a closed file
                show(sys.stderr, self._place.take(), self._moved)

    def _open(self, epoch: int, total: int | None) -> None:
        from tqdm import tqdm

        self.close()
        self._epoch, self._began = epoch, time.monotonic()
        self._steps, self._rows_before = {}, sum(self._rows.values())
        options = {"total": total, "desc": f"epoch {epoch + 1}", "unit": "step", "leave": False}
        if isinstance(self._place, _Cell):
            self._bar = _bar_in_cell(self._place, options)
        else:
            self._bar = tqdm(**options, file=self._place, dynamic_ncols=True)


class _Drawing:
    """A buffer of what tqdm draws for the terminal.

    tqdm draws under a lock that all bars of the process share, and for which its own thread waits
    at exit, so the lock mustn't be held while the terminal is stopped.
    """

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal
        self._pieces: list[str] = []
        #: tqdm reads it to decide whether it may draw with blocks.
        self.encoding = getattr(terminal, "encoding", None)

    def fileno(self) -> int:
        """Return the terminal's descriptor, with which tqdm gets the width."""
        number: int = self._terminal.fileno()
        return number

    def write(self, text: str) -> None:
        """Buffer a piece."""
        self._pieces.append(text)

    def flush(self) -> None:
        """Do nothing: `take` does."""

    def take(self) -> str:
        """Return what was drawn since the last call."""
        pieces, self._pieces = self._pieces, []
        return "".join(pieces)


class _Cell:
    """An output of a notebook's cell that is updated in place.

    A bar in the standard streams would be torn apart: each line of the other stream starts a new
    output. The widgets of ipywidgets, which `tqdm.notebook` takes, need a package in the kernel and
    another in the front end, and are empty in a notebook that was stored. So this is plain HTML,
    with the text beside it for front ends that draw none.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, text: str, markup: str) -> None:
        """Show the bar instead of what was shown before."""
        shown = {"text/plain": text, "text/html": markup}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def write(self, text: str) -> None:
        """Do nothing: `show` does. tqdm moves the cursor of what it takes for a terminal."""

    def flush(self) -> None:
        """Do nothing: it is shown by then."""


def _bar_in_cell(cell: _Cell, options: dict[str, Any]) -> tqdm[Any]:
    """Return a bar that is drawn as HTML."""
    from tqdm import tqdm

    class CellBar(tqdm):  # type: ignore[misc]
        """tqdm's, which asks front ends to replace `display`."""

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            """Show the bar, or nothing once it is closed."""
            del pos
            if msg is not None:
                cell.show(msg, html.escape(msg))
                return
            facts = {**self.format_dict, "ncols": None, "bar_format": "{l_bar}<bar/>{r_bar}"}
            left, _, right = self.format_meter(**facts).partition("<bar/>")
            total = "" if self.total is None else f" max='{self.total}' value='{self.n}'"
            bar = f"<progress{total} style='width:20em;vertical-align:middle'></progress>"
            text = html.escape(left.rstrip("|")), bar, html.escape(right.lstrip("| "))
            cell.show(str(self), f"<pre style='margin:0'>{' '.join(text)}</pre>")

    return CellBar(
        **options,
        file=cell,
        ncols=_NOTEBOOK_COLUMNS,
        ascii=False,
        mininterval=_NOTEBOOK_SECONDS,
    )


def _place() -> _Cell | _Drawing | None:
    """Return where a bar can be drawn properly: a notebook, a terminal, or None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and "IPKernelApp" in getattr(shell, "config", {}):
        from IPython.display import display

        return _Cell(display)
    if is_terminal(sys.stderr) and not _is_piped(sys.stdout):
        return _Drawing(sys.stderr)
    return None


def _is_piped(stream: Any) -> bool:
    """Return whether output may reach the terminal around the bar, as with ``| tee``."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return False
