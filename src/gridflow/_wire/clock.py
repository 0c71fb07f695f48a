"""A clock that leaves out the time in which its own process stood still."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _real() -> float:
    """Return seconds that go on while the machine is suspended, where the system counts those."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class Clock:
    """Seconds to wait for others by.

    A process stands still while it is stopped (SIGSTOP), while C code holds the GIL, and while its
    machine is suspended. A sign of life that was to come in that time may have come, and nobody
    looked: whoever is waited for by this clock gets the time in addition. The clock is asked all
    the time; a longer gap between two calls of `now` is such a standstill.

    Parameters
    ----------
    longest : float
        Seconds between two calls that are no standstill.
    real : callable, optional
        Returns seconds that nothing stops.
    """

    def __init__(self, longest: float = 1.0, real: Callable[[], float] = _real) -> None:
        self._longest, self._real = longest, real
        self._lock = threading.Lock()
        self._last = real()
        self._left_out = self._untold = 0.0

    def now(self) -> float:
        """Return the seconds, from any beginning."""
        with self._lock:
            real = self._real()
            gap, self._last = real - self._last, real
            if gap > self._longest:
                self._left_out += gap
                self._untold += gap
            return real - self._left_out

    def take_standstill(self) -> float:
        """Return for how many seconds the process stood still since this was last asked."""
        with self._lock:
            untold, self._untold = self._untold, 0.0
            return untold
