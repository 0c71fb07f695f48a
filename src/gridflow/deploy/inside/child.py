"""The program beside which `gridflow launch` stands: started, signalled, ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_FOUND: Final = 127
NOT_EXECUTABLE: Final = 126
SIGNALLED: Final = 128
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """Runs one command at a time, in a process group of its own.

    Parameters
    ----------
    grace : float
        Seconds between asking a process to end and killing its group.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.stopped = False

    def run(self, words: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit code; 128 + n after signal n."""
        with self._lock:
            if self.stopped:
                return SIGNALLED + signal.SIGTERM
            try:
                self._process = subprocess.Popen(
                    words,
                    env=dict(environ),
                    process_group=0,
                    # prctl is async-signal-safe, and nothing else can tie a child to its parent.
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                )
            except FileNotFoundError:
                return NOT_FOUND
            except PermissionError:
                return NOT_EXECUTABLE
        code = self._process.wait()
        # What the program left behind would keep the container, or the port, busy.
        self._signal(signal.SIGKILL)
        if self._timer is not None:
            self._timer.cancel()
        return SIGNALLED - code if code < 0 else code

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the command to end, and kill its group after the grace; nothing is started after.

        Not for signal handlers: it waits for a command that is just being started.
        """
        with self._lock:
            self.stopped = True
            if self._process is not None and self._timer is None:
                self._timer = threading.Timer(self._grace, self._signal, [signal.SIGKILL])
                self._timer.daemon = True
                self._timer.start()
            self._signal(number)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                return


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
