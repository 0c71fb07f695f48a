"""The output of a pod or task, whole, though connections to the server break."""

from __future__ import annotations

import re
import subprocess
import threading
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A line of ``kubectl logs --prefix --timestamps``: pod and container, time, text; one of
#: ``docker service logs --timestamps`` begins with the time.
_LINE: Final = re.compile(r"(\[[^\]]*\] )?(\d{4}-\S+) ?")
#: Fractions of a second, as the container's runtime writes them.
_DIGITS: Final = 9
#: What kubectl and docker say of a pod or task that was removed.
_GONE: Final = ("NotFound", "no such task or service")
#: Characters of a time up to its seconds.
_SECONDS: Final = 19


class LogStream:
    """Follows the output of one start of a container.

    A stream that breaks looks like one that has come to its end, so it is opened again, from the
    last line on, until one that was opened after the container's end is read to its own.

    Parameters
    ----------
    words : sequence of str
        The command that prints the output with the time of each line.
    output : text file
    pause : float
        Seconds before it is opened again.
    since : str
        The option that prints what was printed from a time on.
    is_endless : bool
        Whether the command goes on after the container's end when it follows the output.
    """

    def __init__(
        self,
        words: Sequence[str],
        output: TextIO,
        pause: float,
        *,
        since: str,
        is_endless: bool = False,
    ) -> None:
        self._words = list(words)
        self._since = since
        self._is_endless = is_endless
        self._output = output
        self._pause = pause
        self._last = ("", 0)
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gridflow-output", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say that the container has ended: there is an end to be read."""
        if not self._ended.is_set():
            self._ended.set()
            if self._is_endless:
                self._terminate()

    def close(self, seconds: float) -> bool:
        """Stop, after so many seconds at most; return whether all that was to be read was."""
        if self._ended.is_set():
            self._thread.join(seconds)
        is_whole = not self._thread.is_alive() or not self._ended.is_set()
        self._closed.set()
        self._terminate()
        self._thread.join()
        return is_whole

    def _terminate(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def _follow(self) -> None:
        while not self._closed.is_set():
            has_ended = self._ended.is_set()
            try:
                code, said = self._read(has_ended=has_ended)
            except (OSError, ValueError):
                return  # nobody reads what is printed
            if (has_ended and code == 0) or any(word in said for word in _GONE):
                return
            self._closed.wait(self._pause)

    def _read(self, *, has_ended: bool) -> tuple[int, str]:
        words = list(self._words)
        if not has_ended:
            words.append("--follow")
        if self._last[0]:
            words.append(f"{self._since}={self._last[0]}")
        with self._lock:
            # An endless stream would have been ended before it was opened.
            if self._closed.is_set() or (self._is_endless and has_ended != self._ended.is_set()):
                return 0, ""
            self._process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                # docker prints there what the container has printed on its standard error.
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
            )
        process = self._process
        assert process.stdout is not None
        with process.stdout as lines:
            try:
                said = self._print(lines, has_ended=has_ended)
            except BaseException:
                process.terminate()
                raise
        return process.wait(), said

    def _print(self, lines: Iterable[str], *, has_ended: bool) -> str:
        """Print what the container has printed; return what the command itself says."""
        last, count = self._last
        again = 0
        said = ""
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                said += line
                continue
            time = found.group(2)
            # The server knows whole seconds only: some lines come once more.
            if _in_order(time) < _in_order(last):
                continue
            if time == last and again < count:
                again += 1
                continue
            if not line.endswith("\n") and not has_ended:
                break  # cut off
            before, number = self._last
            self._last = time, number + 1 if time == before else 1
            self._output.write((found.group(1) or "") + line[found.end() :])
            self._output.flush()
        return said


def _in_order(time: str) -> str:
    """Return a time whose texts are in the order of times; zeros at the end are left out of it."""
    whole, _, part = time.partition(".")
    digits = re.match(r"\d*", part)
    return whole[:_SECONDS] + "." + (digits.group() if digits else "").ljust(_DIGITS, "0")
