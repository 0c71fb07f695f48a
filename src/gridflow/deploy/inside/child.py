"""Runs the program of `gridflow launch` as a child process, and passes signals on to it."""

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
    """Runs one command at a time, in its own process group.

    `grace`: Seconds between asking a process to end and killing its group.
    `overhear`: Also keep the end of a command's standard error.
    `trouble`: Why the last command could not be started; empty if it was.
    `tail`: The end of the last command's standard error, with `overhear`.
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
        """Run a command and return its exit code, or 128 + n after signal n."""
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
                    # prctl is async-signal-safe, and there is no other way to tie a child to its
                    # parent.
                    preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
                )
            except FileNotFoundError:
                self.trouble = f"program {words[0]!r} not found here or on the PATH"
                return Exit.NOT_FOUND
            except OSError as error:
                self.trouble = f"{words[0]!r} can't be run: {error.strerror}"
                return Exit.NOT_EXECUTABLE
        ear = _Ear(self._process) if self._overhear else None
        code = self._process.wait()
        # Leftover processes would keep the container or the port busy.
        self._signal(signal.SIGKILL)
        if ear is not None:
            self.tail = ear.words()
        if self._timer is not None:
            self._timer.cancel()
        return SIGNALLED - code if code < 0 else code

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the command to end, kill its group after the grace period, and start no others.

        Don't call it in signal handlers: it waits for a command that is just starting.
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
    """Passes on a process's standard error without delay, and keeps its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._listen, name="gridflow-stderr", daemon=True)
        self._thread.start()

    def words(self) -> str:
        """Return the end of the output, without waiting for processes that keep the pipe open."""
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
        return  # nobody reads the output; the program must not notice


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM when the parent dies; call it between fork and exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
