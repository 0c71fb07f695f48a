"""Which steps the driver is to expect of this process: what its deadlines hold for."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from gridflow._wire.reports import StepsDue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The driver asks before it gives anybody up, so its signs may be few.
_LONGEST_SILENCE: Final = 5.0


class Due:
    """The steps of a training process, as far as anybody waits for them.

    Parameters
    ----------
    send : callable
        Takes what the driver is to hear.
    timeout : float or None
        The job's ``Deadlines.step``.
    """

    def __init__(self, send: Callable[[StepsDue], object], timeout: float | None) -> None:
        self._send = send
        self._interval = min(_LONGEST_SILENCE, (timeout or _LONGEST_SILENCE) / 4)
        self._lock = threading.Lock()
        self._depth = 0
        self._due = self._together = False
        self._last = self._told = 0.0
        self._callbacks = 0

    @property
    def in_step(self) -> bool:
        """Whether the process is in a fit that takes all ranks, and in none of its callbacks."""
        return self._together and not self._callbacks

    @property
    def idle(self) -> float | None:
        """Seconds since the last step; None: none is due."""
        return time.monotonic() - self._last if self._due else None

    @contextlib.contextmanager
    def during(self, *, together: bool) -> Iterator[bool]:
        """Let steps be due in a block; whether it is the outermost one is what it yields."""
        is_outer = self._depth == 0
        self._depth += 1
        try:
            if is_outer:
                self._tell(due=True, together=together)
            yield is_outer
        finally:
            self._depth -= 1
            if is_outer:
                self._tell(due=False)

    @contextlib.contextmanager
    def in_callbacks(self) -> Iterator[None]:
        """Let callbacks be at work in a block: they may take as long as they like."""
        self._callbacks += 1
        try:
            yield
        finally:
            self._callbacks -= 1

    def step_ended(self) -> None:
        """Note that a step has ended, of training or not."""
        self._last = time.monotonic()
        if self._due and self._last - self._told >= self._interval:
            self._tell(due=True, together=self._together)

    def reported(self) -> None:
        """Note that a loop of the user's own has made a step: from now on they are due."""
        self._due = True
        self.step_ended()

    def wait(self, *, waits: bool) -> None:
        """Note that rows are waited for, or have come: meanwhile no step is due."""
        if self._depth:
            self._tell(due=not waits, together=self._together)

    def stop(self) -> None:
        """Note that no step is due any more."""
        self._tell(due=False)

    def _tell(self, *, due: bool, together: bool = False) -> None:
        with self._lock:
            self._due, self._together = due, together
            self._last = self._told = time.monotonic()
            self._send(StepsDue(due, together))
