"""The program beside which `gridflow launch` stands: started, signalled, ended."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final

from gridflow._spec.exits import SIGNALLED, Exit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PR_SET_PDEATHSIG: Final = 1
_TAIL_BYTES: Final = 64 * 1024
_CHUNK: Final = 8192
_LAST_WORDS: Final = 2.0


class Child:
    """Runs one command at a time, in a process group of its own.

    Parameters
    ----------
    grace : float
        Seconds between asking a process to end and killing its group.
    overhear : bool, default False
        Keep the end of what a command prints on standard error, on its way there.

    Attributes
    ----------
    trouble : str
        Why the last command could not be started; empty if it was.
    tail : str
        The end of the last command's standard error, if it is overheard.
    """

    def __init__(self, grace: float, *, overhear: bool = False) -> None:
        self._grace = grace
        self._overhear = overhear
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self.stopped = False
        self.trouble = ""
        self.tail = ""

    def run(self, words: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run a command to its end and return its exit code; 128 + n after signal n."""
        with self._lock:
            self.trouble = self.tail = ""
            if self.stopped:
                return SIGNALLED + signal.SIGTERM
            try:
                self._process = subprocess.Popen(
                    words,
                    env=dict(environ),
                    process_group=0,
                    stderr=subprocess.PIPE if self._overhear else None,
                    # prctl is async-signal-safe, and nothing else can tie a child to its parent.
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                )
            except FileNotFoundError:
                self.trouble = f"no program {words[0]!r} here or on the PATH"
                return Exit.NOT_FOUND
            except OSError as error:
                self.trouble = f"{words[0]!r} can't be run: {error.strerror}"
                return Exit.NOT_EXECUTABLE
        ear = _Ear(self._process) if self._overhear else None
        code = self._process.wait()
        # What the program left behind would keep the container, or the port, busy.
        self._signal(signal.SIGKILL)
        if ear is not None:
            self.tail = ear.words()
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


class _Ear:
    """Passes a process's standard error on at once, and keeps its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._listen, name="gridflow-stderr", daemon=True)
        self._thread.start()

    def words(self) -> str:
        """Return the end of what was printed; what holds the pipe open longer isn't waited for."""
        self._thread.join(timeout=_LAST_WORDS)
        return bytes(self._tail).decode(errors="replace")

    def _listen(self) -> None:
        with self._pipe:
            while piece := os.read(self._pipe.fileno(), _CHUNK):
                self._tail += piece
                del self._tail[:-_TAIL_BYTES]
                _write(piece)


def _write(piece: bytes) -> None:
    stderr = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
    try:
        while piece:
            piece = piece[os.write(stderr, piece) :]
    except OSError:
        return  # nobody reads; the program isn't to notice


def end_with_parent() -> None:
    """Let this process be asked to end when its parent has died; between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
