"""When steps are due from this process, for the driver's deadlines, and where their time goes.

A step begins when its callbacks have been told so, and ends when they are. What other parts count
by themselves (waiting for other ranks, making batches) is read from them. The first step of each
fit isn't counted: it traces and compiles.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from gridflow._wire.reports import StepsDue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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


_clock: Final = time.perf_counter
_KINDS: Final = ("between", "callbacks", "batch_callbacks", "checkpoints", "validation")
#: These are part of each step.
_OF_BATCHES: Final = ("on_train_batch_begin", "on_train_batch_end")


class Spent:
    """Seconds by what they were spent on, over all fits of this process.

    `counters` (mapping of str to callable): What others count: functions that return seconds so
        far.
    `steps`: How many have begun.
    `rows_a_step`: 0 if unknown.
    `fetching`: Returns the seconds in which steps fetched their batches, where they do so
        themselves.
    """

    def __init__(self, counters: Mapping[str, Callable[[], float]]) -> None:
        self._counters = dict(counters)
        self.steps = self.rows_a_step = 0
        self.fetching: Callable[[], float] = float
        self._own = dict.fromkeys(_KINDS, 0.0)
        self._arriving = self._fetched_elsewhere = 0.0
        self._kept: dict[str, float] = {}
        self._from: dict[str, float] | None = None
        self._idle_since: float | None = None
        #: When a validation began, and what was fetched by then.
        self._validating: tuple[float, float] | None = None

    def report(self) -> dict[str, float]:
        """Return the seconds by kind; empty before the second step.

        ``total``; of these ``rows`` (waiting for a batch), ``ranks`` (for other ranks),
        ``callbacks`` (of which ``batch_callbacks`` are part of each step), ``checkpoints`` and
        ``validation``. Beside them ``source`` (reading rows and making batches, perhaps while steps
        are made), ``arriving`` (waiting for all rows before the first step), the number of
        ``steps`` and the ``rows_a_step``.
        """
        found = self._so_far()
        if not found.get("steps"):
            return {}
        found |= {"arriving": self._arriving, "rows_a_step": float(self.rows_a_step)}
        between = found.pop("between")
        found["rows"] = between + found.pop("fetching")
        found["source"] += between
        return found

    @contextlib.contextmanager
    def during(self, event: str) -> Iterator[None]:
        """Measure a block in which callbacks of the outermost fit are told of an event."""
        if event == "on_train_batch_begin" and self._idle_since is not None:
            self._own["between"] += _clock() - self._idle_since
            self._idle_since = None
        if event == "on_train_begin":
            self._from = None  # of a fit that has failed
        before = self._elsewhere()
        began = _clock()
        yield
        now = _clock()
        took = now - began - (self._elsewhere() - before)
        self._own["callbacks"] += took
        if event in _OF_BATCHES:
            self._own["batch_callbacks"] += took
        match event:
            case "on_train_batch_begin":
                self.steps += 1
                return
            case "on_train_batch_end" if self._from is None:
                self._from = self._count()
            case "on_train_end":
                self._kept, self._from = self._so_far(), None
        self._idle_since = None if self._from is None else now

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure a block that makes a checkpoint."""
        began = _clock() - self._waited()
        try:
            yield
        finally:
            self._own["checkpoints"] += _clock() - self._waited() - began

    @contextlib.contextmanager
    def awaiting_rows(self) -> Iterator[None]:
        """Measure a block that waits for rows to arrive, before training."""
        began = _clock()
        yield
        self._arriving += _clock() - began

    def validation(self, *, begins: bool) -> None:
        """Note that a validation begins or has ended."""
        now = _clock() - self._waited()
        if begins:
            self._validating = now, self.fetching()
        elif self._validating is not None:
            (began, fetched), self._validating = self._validating, None
            self._own["validation"] += now - began
            self._fetched_elsewhere += self.fetching() - fetched

    def _waited(self) -> float:
        return self._counters["ranks"]()

    def _elsewhere(self) -> float:
        """Return what isn't the callbacks' own time."""
        return self._waited() + self._own["checkpoints"]

    def _count(self) -> dict[str, float]:
        found = {name: read() for name, read in self._counters.items()}
        return (
            found
            | self._own
            | {
                "total": _clock(),
                "steps": float(self.steps),
                "fetching": self.fetching() - self._fetched_elsewhere,
            }
        )

    def _so_far(self) -> dict[str, float]:
        if self._from is None:
            return dict(self._kept)
        return {
            name: self._kept.get(name, 0.0) + now - self._from.get(name, 0.0)
            for name, now in self._count().items()
        }
