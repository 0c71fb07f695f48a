"""Copies of TensorBoard's event files in HDFS or an object store while the job writes them.

The driver receives them as they grow, and copies those that have grown, each as a whole.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from gridflow._coordinator.observing import Observer
from gridflow._files import transfer
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gridflow._coordinator.observing import JobEnd
    from gridflow._files.systems import Where

__all__ = ["EventFiles"]

_PAUSE_SECONDS: Final = 15.0


class EventFiles(Observer):
    """A folder of the driver whose files are copied to another file system as training goes on.

    Failed copies are reported once and retried; training goes on.

    `say`: Tells the user.
    `patience`: Seconds that the end of the job waits for the last copies.
    """

    def __init__(
        self, folder: Path, there: Where, say: Callable[[str], None], patience: float
    ) -> None:
        self._folder, self._there, self._say = folder, there, say
        self.patience = patience
        self._copied: dict[Path, int] = {}
        self._problem = ""
        self._next = 0.0

    def state(self, state: str) -> None:  # noqa: ARG002 (whatever happens is an occasion)
        self._copy_if_due()

    def metrics(self, step: int, values: Mapping[str, float], task: str) -> None:  # noqa: ARG002
        self._copy_if_due()

    def epoch(self, number: int, values: Mapping[str, float]) -> None:  # noqa: ARG002
        self._copy_if_due()

    def end(self, outcome: JobEnd) -> None:  # noqa: ARG002
        self._copy()
        if self._problem:
            place = self._there.complete(self._there.path)
            self._say(f"event files are missing in {place}: {self._problem}")

    def _copy_if_due(self) -> None:
        if time.monotonic() >= self._next:
            self._copy()

    def _copy(self) -> None:
        before, self._problem = self._problem, ""
        try:
            for path in sorted(each for each in self._folder.rglob("*") if each.is_file()):
                size = path.stat().st_size
                if self._copied.get(path) == size:
                    continue
                name = path.relative_to(self._folder).as_posix()
                target = f"{self._there.path.rstrip('/')}/{name}"
                transfer.put(path, self._there.at(target))
                self._copied[path] = size
        except (GridflowError, OSError) as error:
            self._problem = str(error)
            if not before:
                self._say(f"can't copy event files, will retry: {error}")
        self._next = time.monotonic() + _PAUSE_SECONDS
