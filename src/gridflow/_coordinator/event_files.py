"""Copies of TensorBoard's event files in HDFS or an object store while the job writes them.

The driver receives them as they grow, and copies those that have grown, each as a whole.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from gridflow._files import transfer
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gridflow._files.systems import Where

__all__ = ["EventFiles"]

_PAUSE_SECONDS: Final = 15.0


class EventFiles:
    """A folder of the driver whose files are copied to another file system as they grow.

    Failed copies are reported once and retried; training goes on.

    `say`: Tells the user.
    """

    def __init__(self, folder: Path, there: Where, say: Callable[[str], None]) -> None:
        self._folder, self._there, self._say = folder, there, say
        self._copied: dict[Path, int] = {}
        self._problem = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gridflow-events", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Copy what is left; give up after some seconds."""
        self._closed.set()
        self._thread.join(seconds)
        place = self._there.complete(self._there.path)
        if self._thread.is_alive():
            self._say(f"gave up copying event files to {place}: it took too long")
        elif self._problem:
            self._say(f"event files are missing in {place}: {self._problem}")

    def _follow(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            self._copy()
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
