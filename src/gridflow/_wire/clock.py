"""A clock that leaves out the time during which its own process was stopped."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _real() -> float:
    """Return seconds that include time suspended, if the system counts it."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Clock:
    """A clock for deadlines of other processes.

    A process stands still while it is stopped (SIGSTOP), while C code holds the GIL, and while its
    machine is suspended. Heartbeats due in that time may have arrived unseen, so deadlines by this
    clock are extended by that time. The clock is read continuously: a long gap between two calls of
    `now` counts as such a standstill.

    `longest`: The longest gap between two calls, in seconds, that isn't a standstill.
    `real`: Returns seconds that never stop.
    """

    def __init__(self, longest: float = 1.0, real: Callable[[], float] = _real) -> None:
        self._longest, self._real = longest, real
        self._lock = threading.Lock()
        self._last = real()
        self._left_out = self._untold = 0.0

    def now(self) -> float:
        """Return the seconds since an arbitrary moment."""
        with self._lock:
            real = self._real()
            gap, self._last = real - self._last, real
            if gap > self._longest:
                self._left_out += gap
                self._untold += gap
            return real - self._left_out

    def take_standstill(self) -> float:
        """Return for how many seconds the process stood still since the last call."""
        with self._lock:
            untold, self._untold = self._untold, 0.0
            return untold
