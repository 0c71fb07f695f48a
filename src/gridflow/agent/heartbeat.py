"""The agent's signs of life, from a thread of their own.

Whatever the supervisor is busy with (the download of a checkpoint, rows to lend, the end of a
process that clings to life), reports go out and commands come in meanwhile.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.agent.reporter import Reporter
    from gridflow.wire.commands import Command


class Heartbeat:
    """Exchanges reports for commands until it is stopped or the coordinator is gone.

    Parameters
    ----------
    reporter : Reporter
    interval : float
        Seconds between two exchanges.
    quiet : float
        The same while all do their work: each exchange takes the processor from a step that all
        wait for.
    is_quiet : callable
        Whether that is so.
    """

    def __init__(
        self, reporter: Reporter, interval: float, quiet: float, is_quiet: Callable[[], bool]
    ) -> None:
        self._reporter, self._interval, self._quiet = reporter, interval, quiet
        self._is_quiet = is_quiet
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        #: Why it ended by itself.
        self.error: WireError | None = None
        self._thread = threading.Thread(target=self._beat, name="gridflow-heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_beating(self) -> bool:
        """Whether there is somebody to hear it."""
        return self._thread.is_alive() and not self._reporter.coordinator_gone

    def next_command(self) -> Command | None:
        """Wait for a command; None when it is time to look after the process, or `wake` says so."""
        try:
            return self._commands.get(timeout=self._pause())
        except queue.Empty:
            return None

    def wake(self) -> None:
        """End the present `next_command`, or the next one; send what is queued at once."""
        self._commands.put(None)
        self._reporter.hurry()

    def stop(self) -> None:
        """End the thread: from now on the caller may exchange by itself."""
        self._stopped.set()
        self._reporter.hurry()
        self._thread.join()

    def _pause(self) -> float:
        return self._quiet if self._is_quiet() else self._interval

    def _beat(self) -> None:
        try:
            while not self._stopped.is_set() and not self._reporter.coordinator_gone:
                for command in self._reporter.exchange():
                    self._commands.put(command)
                self._reporter.wait(self._interval, self._pause())
        except WireError as error:
            self.error = error
        self._commands.put(None)
