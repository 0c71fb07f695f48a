"""Waiting for what is to come: one limit for all tests, as generous as the machine is busy."""

from __future__ import annotations

import os
import time
from typing import Final

#: On a machine with nothing else to do, where what is waited for takes a few seconds at most.
_CALM: Final = 120.0
#: Seconds for a process that a test starts, and the most that anything is waited for: below the
#: ten minutes of a test, whose end would say less than who waits.
LONGEST: Final = 540.0
#: Between two looks, of which the first come fast and all of them may be dear.
_PAUSES: Final = (0.005, 0.2)


def patience():
    """Return the seconds after which what hasn't come never will.

    A limit for what is to succeed, also for ``process.wait()``, ``thread.join()`` and the like.
    """
    busy = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return min(_CALM * max(busy, 1.0), LONGEST)


def wait_for(condition, what, *, seen=None, ignoring=()):
    """Wait until a condition holds; return its value.

    Parameters
    ----------
    condition : callable
        Returns something that is true in the end. May raise to give up at once.
    what : str
        That it waits for, as the error says it.
    seen : callable, optional
        Returns what the error shows, such as a log; by default the condition's last value.
    ignoring : tuple of exception types
        What the condition may raise as long as it doesn't hold.

    Raises
    ------
    AssertionError
        What was waited for in vain, and what was seen last.
    """
    began, (pause, longest) = time.monotonic(), _PAUSES
    while True:
        try:
            last = condition()
        except ignoring as error:
            last = error
        else:
            if last:
                return last
        waited = time.monotonic() - began
        if waited > patience():
            last = repr(last) if seen is None else seen()
            raise AssertionError(f"waited {waited:.0f} seconds for {what}; seen last: {last}")
        time.sleep(pause)
        pause = min(1.5 * pause, longest)
