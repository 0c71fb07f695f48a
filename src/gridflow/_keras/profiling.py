"""The backend's profiler, on the same steps of all ranks, for `JobHandle.profile`."""

from __future__ import annotations

import logging
import shutil
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from gridflow._spec.gpus import folder_of

if TYPE_CHECKING:
    from gridflow._spec.backends import BackendFacts
    from gridflow._spec.cluster import Task

_logger: Final = logging.getLogger(__name__)
_ENDING: Final = "*.xplane.pb"


class Profiler:
    """Profiles steps of fits, once the driver asks for it.

    `folder`: Of the task's event files.
    """

    def __init__(self, backend: BackendFacts, task: Task, folder: Path) -> None:
        self._facts, self._task, self._folder = backend, task, folder
        #: First and last step: what to profile next, and what is being profiled, and into where.
        self._next: tuple[int, int] | None = None
        self._now: tuple[int, int, Path] | None = None

    def ask(self, first: int, last: int) -> None:
        """Profile steps from now on; from the thread that hears the agent."""
        self._next = first, last

    def told(self, event: str, steps: int) -> None:
        """Begin or end, as callbacks of the outermost fit are told of an event.

        `steps`: How many have begun.
        """
        try:
            if self._now is not None:
                self._end_if_due(event, steps, *self._now)
            elif event == "on_train_batch_begin" and self._next and steps >= self._next[0]:
                place = Path(mkdtemp(prefix="gridflow-profile-"))
                self._now, self._next = (*self._next, place), None
                self._call(0, str(place))
        except Exception as error:  # noqa: BLE001 (training goes on, whatever a profiler raises)
            _logger.warning("can't profile steps: %s", error)
            self._forget()

    def _end_if_due(self, event: str, steps: int, first: int, last: int, place: Path) -> None:
        if event == "on_train_end" or (event == "on_train_batch_end" and steps >= last):
            self._call(1)
            # Profilers name it by the host, on which other ranks may be, too.
            (found,) = place.rglob(_ENDING)
            folder = self._folder / folder_of(first, last)
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(found, folder / f"{str(self._task).replace(':', '-')}{_ENDING[1:]}")
            self._forget()

    def _forget(self) -> None:
        if self._now is not None:
            shutil.rmtree(self._now[-1], ignore_errors=True)
            self._now = None

    def _call(self, which: int, *arguments: str) -> None:
        assert self._facts.profiler is not None
        attrgetter(self._facts.profiler[which])(import_module(self._facts.name))(*arguments)
