"""Checkpoints are written beside the training: it waits while its variables are read, no longer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


#: How long a process that has failed stays for a checkpoint that it was writing.
_SETTLE_SECONDS: Final = 30.0


class Writer:
    """Does one piece of work after the other in a thread, at most one at a time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Begin it, once the one before is done; what that one raised is raised here."""
        self.wait()
        # A daemon: a process that ends in the middle of it must not wait for a full disk.
        self._thread = threading.Thread(
            target=self._run, args=(work,), name="gridflow-checkpoint", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is done.

        Raises
        ------
        BaseException
            What the work raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def settle(self, seconds: float = _SETTLE_SECONDS) -> None:
        """Wait until it is done, for so many seconds; whether that failed no longer matters."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            self._error = error
