"""The output of a pod, whole, though connections to the API server break."""

from __future__ import annotations

import re
import subprocess
import threading
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: A line of ``kubectl logs --prefix --timestamps``: pod and container, time, text.
_LINE: Final = re.compile(r"(\[[^\]]*\] )?(\d{4}-\S+) ?")
#: Fractions of a second, as the container's runtime writes them.
_DIGITS: Final = 9
#: Characters of a time up to its seconds.
_SECONDS: Final = 19


class LogStream:
    """Follows the output of one start of a container by ``kubectl logs``.

    A stream that breaks looks like one that has come to its end, so it is opened again, from the
    last line on, until one that was opened after the container's end is read to its own.

    Parameters
    ----------
    words : sequence of str
        The command that prints the output.
    output : text file
    pause : float
        Seconds before it is opened again.
    """

    def __init__(self, words: Sequence[str], output: TextIO, pause: float) -> None:
        self._words = [*words, "--follow", "--prefix", "--timestamps"]
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
        self._ended.set()

    def close(self, seconds: float) -> bool:
        """Stop, after so many seconds at most; return whether all that was to be read was."""
        if self._ended.is_set():
            self._thread.join(seconds)
        is_whole = not self._thread.is_alive() or not self._ended.is_set()
        self._closed.set()
        with self._lock:
            if self._process is not None:
                self._process.terminate()
        self._thread.join()
        return is_whole

    def _follow(self) -> None:
        while not self._closed.is_set():
            has_ended = self._ended.is_set()
            try:
                code, said = self._read()
            except (OSError, ValueError):
                return  # nobody reads what is printed
            if (has_ended and code == 0) or "NotFound" in said:
                return
            self._closed.wait(self._pause)

    def _read(self) -> tuple[int, str]:
        words = list(self._words)
        if self._last[0]:
            words.append(f"--since-time={self._last[0]}")
        with self._lock:
            if self._closed.is_set():
                return 0, ""
            self._process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
            )
        process = self._process
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout as lines, process.stderr as errors:
            try:
                self._print(lines)
            except BaseException:
                process.terminate()
                raise
            said = errors.read()
        return process.wait(), said

    def _print(self, lines: Iterable[str]) -> None:
        last, count = self._last
        again = 0
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                continue
            time = found.group(2)
            # The server knows whole seconds only: some lines come once more.
            if _in_order(time) < _in_order(last):
                continue
            if time == last and again < count:
                again += 1
                continue
            if not line.endswith("\n") and not self._ended.is_set():
                return  # cut off
            before, number = self._last
            self._last = time, number + 1 if time == before else 1
            self._output.write((found.group(1) or "") + line[found.end() :])
            self._output.flush()


def _in_order(time: str) -> str:
    """Return a time whose texts are in the order of times; zeros at the end are left out of it."""
    whole, _, part = time.partition(".")
    digits = re.match(r"\d*", part)
    return whole[:_SECONDS] + "." + (digits.group() if digits else "").ljust(_DIGITS, "0")
