"""Writes checkpoints in the background: training waits only while variables are read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


#: How long a failed process waits for a checkpoint that it is writing.
_SETTLE_SECONDS: Final = 30.0


class Writer:
    """Does work in a background thread, one piece at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Start work once the previous one is done; raise what the previous one raised."""
        self.wait()
        # A daemon thread: a process that ends must not wait for a full disk.
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="gridflow-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done.

        Raises `BaseException`: What the work raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def settle(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Wait until the work is done, up to a number of seconds; ignore its errors."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            self._error = error
