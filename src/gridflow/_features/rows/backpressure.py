"""Slows down reading rows while training starts, if the two compete for processors.

Reading rows needs processor time, and so does starting a training process. With too few processors,
a start while rows arrive at full speed takes longer the more rows there are, though it needs only
the first of them. So while tasks of this host wait for a processor, reading pauses now and then,
until the process asks for rows that aren't there yet or has made its first step. Spark waits
meanwhile, as its task isn't read from.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from gridflow._features.base import Feature
from gridflow._files import procfs
from gridflow._wire import child

if TYPE_CHECKING:
    from gridflow._features.base import Tools
    from gridflow._wire.messages import Message

#: As many bytes come at once in any case: most of them are read by the first steps.
_FREE_BYTES: Final = 1 << 20
#: A process that says nothing of its rows for so long may not need them; others may wait for them.
_MOST_SECONDS: Final = 10.0
#: A rest takes so many times as long as the batch before it, as long as this at least, as Spark
#: makes some batches ahead, and twice as long as the one before: a start waits for other things
#: now and then, and rows that came then would be in its way right after.
_REST: Final = 8
_LEAST_REST_SECONDS: Final = 0.1
#: Processors are too few where somebody had to wait for one in this part of the time.
_CONTENDED: Final = 0.2
_LOOK_SECONDS: Final = 0.01


class Backpressure(Feature):
    """Lets the spooling thread pause, unless the function runs elsewhere and waits for its rows."""

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._hurry = threading.Event()
        if not tools.payload.spec.parts[tools.rank].runs_function:
            self._hurry.set()
        self._bytes, self._began, self._last = 0, 0.0, 0.0
        self._rested = _LEAST_REST_SECONDS / 2
        self._looked: tuple[float, float] | None = None
        self._is_contended = False

    def hear(self, message: Message) -> bool:
        """Note that rows are needed now."""
        if isinstance(message, child.RowsAwaited):
            self._hurry.set()
            return True
        return False

    def read(self, size: int) -> None:
        """Pause before the next rows are read."""
        now = time.monotonic()
        self._began = self._began or now
        self._bytes += size
        if now - self._began > _MOST_SECONDS:
            self._hurry.set()
        if self._bytes > _FREE_BYTES and not self._hurry.is_set() and self._contended(now):
            self._rested = max(2 * self._rested, _REST * (now - (self._last or now)))
            self._hurry.wait(min(self._rested, self._began + _MOST_SECONDS - now))
        self._last = time.monotonic()

    def close(self) -> None:
        """End the pause: the job is over."""
        self._hurry.set()

    def _contended(self, now: float) -> bool:
        """Return whether tasks of this host have waited for a processor lately."""
        if self._looked is None or now - self._looked[0] > _LOOK_SECONDS:
            waited = procfs.waited_for_processors()
            if waited is None:  # this kernel doesn't report it
                self._hurry.set()
                return False
            if self._looked is not None:
                at, before = self._looked
                self._is_contended = waited - before > _CONTENDED * (now - at)
            self._looked = now, waited
        return self._is_contended
