"""Whether the driver should expect steps from this process, for its deadlines."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from gridflow._wire.reports import StepsDue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The driver asks before it gives up on a process, so reports may be rare.
_LONGEST_SILENCE: Final = 5.0


class Due:
    """Whether steps of a training process are due.

    `send`: Sends messages to the driver.
    `timeout`: The job's ``Deadlines.step``.
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
        """Whether the process is in a fit that involves all ranks, and not in a callback."""
        return self._together and not self._callbacks

    @property
    def depth(self) -> int:
        """How many fits, evaluations and predictions run inside one another; 0 in a callback."""
        return 0 if self._callbacks else self._depth

    @property
    def idle(self) -> float | None:
        """Seconds since the last step; None if no step is due."""
        return time.monotonic() - self._last if self._due else None

    @contextlib.contextmanager
    def during(self, *, together: bool) -> Iterator[bool]:
        """Make steps due in a block; yield whether it is the outermost one."""
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
        """Suspend the deadline in a block while callbacks run."""
        self._callbacks += 1
        try:
            yield
        finally:
            self._callbacks -= 1

    def step_ended(self) -> None:
        """Note that a step of any kind has ended."""
        self._last = time.monotonic()
        if self._due and self._last - self._told >= self._interval:
            self._tell(due=True, together=self._together)

    def reported(self) -> None:
        """Note that a custom loop has made a step: from now on steps are due."""
        self._due = True
        self.step_ended()

    def wait(self, *, waits: bool) -> None:
        """Note that the process waits for rows, or has got them: meanwhile no step is due."""
        if self._depth:
            self._tell(due=not waits, together=self._together)

    def stop(self) -> None:
        """Note that no more steps are due."""
        self._tell(due=False)

    def _tell(self, *, due: bool, together: bool = False) -> None:
        with self._lock:
            self._due, self._together = due, together
            self._last = self._told = time.monotonic()
            self._send(StepsDue(due, together))
