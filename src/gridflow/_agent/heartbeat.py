"""The agent's heartbeat, in a thread of its own.

While the supervisor is busy (with downloading a checkpoint, lending rows, or ending a stubborn
process), reports still go out and commands come in.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from gridflow._wire.reports import ExecutorFrozen
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._agent.executor import ExecutorWatch
    from gridflow._agent.reporter import Reporter
    from gridflow._wire.commands import Command

_EAGER_SECONDS: Final = 2.0


class Heartbeat:
    """Exchanges reports for commands until it is stopped or the coordinator is gone.

    `interval`: Seconds between two exchanges.
    `quiet`: The same while all are at work: each exchange takes processor time from a step that all
        wait for.
    `is_quiet`: Returns whether all are at work.
    `eager`: Seconds between two exchanges at first, and for a while after each command: then the
        next command, for which the start of all tasks waits, often follows soon.
    `watch`: Watches the agent's executor.
    """

    def __init__(
        self,
        reporter: Reporter,
        interval: float,
        quiet: float,
        is_quiet: Callable[[], bool],
        eager: float,
        watch: ExecutorWatch | None = None,
    ) -> None:
        self._reporter, self._interval, self._quiet = reporter, interval, quiet
        self._is_quiet, self._eager, self._watch = is_quiet, eager, watch
        self._eager_until = time.monotonic() + _EAGER_SECONDS
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        #: Whether the executor was found frozen.
        self.executor_is_frozen = False
        #: The error that ended it.
        self.error: WireError | None = None
        self._thread = threading.Thread(target=self._beat, name="gridflow-heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_beating(self) -> bool:
        """Whether the coordinator can still be reached."""
        return self._thread.is_alive() and not self._reporter.coordinator_gone

    def next_command(self) -> Command | None:
        """Wait for a command; None when it is time to check the process, or after `wake`."""
        try:
            return self._commands.get(timeout=self._pause())
        except queue.Empty:
            return None

    def wake(self) -> None:
        """End the current `next_command`, or the next one; send what is queued at once."""
        self._commands.put(None)
        self._reporter.hurry()

    def stop(self) -> None:
        """Stop the thread; then the caller may exchange by itself."""
        self._stopped.set()
        self._reporter.hurry()
        self._thread.join()

    def _pause(self) -> float:
        if self._is_quiet():
            return self._quiet
        return self._eager if time.monotonic() < self._eager_until else self._interval

    def _look_at_executor(self) -> None:
        problem = self._watch.look() if self._watch is not None else ""
        if problem:
            self._watch, self.executor_is_frozen = None, True
            self._reporter.report(ExecutorFrozen(problem))

    def _beat(self) -> None:
        try:
            while not self._stopped.is_set() and not self._reporter.coordinator_gone:
                self._look_at_executor()
                for command in self._reporter.exchange():
                    self._commands.put(command)
                    self._eager_until = time.monotonic() + _EAGER_SECONDS
                pause = self._pause()
                self._reporter.wait(min(self._interval, pause), pause)
        except WireError as error:
            self.error = error
        self._commands.put(None)
