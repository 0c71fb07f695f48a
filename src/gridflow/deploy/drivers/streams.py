"""The complete output of a pod or task, even if connections to the server break."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import threading
from typing import IO, TYPE_CHECKING, Final, TextIO

from gridflow._spec.printable import printable
from gridflow.deploy.drivers.base import is_final, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: A line of ``kubectl logs --prefix --timestamps`` has pod and container, time and text. A line of
#: ``docker service logs --timestamps`` starts with the time.
_LINE: Final = re.compile(r"(\[[^\]]*\] )?(\d{4}-\S+) ?")
#: Digits of fractions of a second in the container runtime's timestamps.
_DIGITS: Final = 9
#: Messages of kubectl and docker for a removed pod or task.
_GONE: Final = ("NotFound", "no such task or service")
#: Length of a timestamp up to its seconds.
_SECONDS: Final = 19


def lines_of(output: IO[bytes]) -> TextIO:
    """Return the text of a tool's output; only line feeds end lines, as in containers' logs."""
    return io.TextIOWrapper(output, encoding="utf-8", errors="replace", newline="\n")


class LogStream:
    """Follows the output of one start of a container.

    A broken stream looks like one that has ended. So the stream is reopened after the last line,
    until one that was opened after the container's end has been read completely.

    `words` (sequence of str): The command that prints the output with timestamps.
    `pause`: Seconds before reopening the stream.
    `since`: The option that limits the output to lines after a time.
    `is_endless`: Whether the command keeps following after the container's end.
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
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="gridflow-output", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Signal that the container has ended, so that its output has an end."""
        if not self._ended.is_set():
            self._ended.set()
            if self._is_endless:
                self._terminate()

    def close(self, seconds: float) -> bool:
        """Stop after at most `seconds`; return whether all output was read."""
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
                return  # the output was closed
            if is_final(said):
                say(said.strip())
                return
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
            # `end` couldn't stop an endless stream that wasn't open yet.
            if self._closed.is_set() or (self._is_endless and has_ended != self._ended.is_set()):
                return 0, ""
            self._process = subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                # docker prints the container's standard error there.
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdout is not None
        with lines_of(process.stdout) as lines:
            try:
                said = self._print(lines, has_ended=has_ended)
            except BaseException:
                process.terminate()
                raise
        return process.wait(), said

    def _print(self, lines: Iterable[str], *, has_ended: bool) -> str:
        """Print the container's output; return the command's own messages."""
        last, count = self._last
        again = 0
        said = ""
        for line in lines:
            found = _LINE.match(line)
            if found is None:
                said += line
                continue
            time = found.group(2)
            # The server only uses whole seconds, so some lines are repeated.
            if _in_order(time) < _in_order(last):
                continue
            if time == last and again < count:
                again += 1
                continue
            if not line.endswith("\n") and not has_ended:
                break  # cut off
            before, number = self._last
            self._last = time, number + 1 if time == before else 1
            self._output.write(printable((found.group(1) or "") + line[found.end() :]))
            self._output.flush()
        return said


def _in_order(time: str) -> str:
    """Return a timestamp in a sortable form, because trailing zeros are omitted in timestamps."""
    whole, _, part = time.partition(".")
    digits = re.match(r"\d*", part)
    return whole[:_SECONDS] + "." + (digits.group() if digits else "").ljust(_DIGITS, "0")


def show(words: Sequence[str], output: TextIO, text: str | None = None) -> int:
    """Run a tool, and print what containers have printed without control sequences.

    `text`: The tool's input.
    Returns: The tool's exit code.
    """
    with showing(words, output, text) as tool:
        return tool.wait()


@contextlib.contextmanager
def showing(
    words: Sequence[str], output: TextIO, text: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a tool like `show` during the block; what it has printed by its end is shown."""
    tool = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # where docker prints the containers' standard error
    )
    reader = threading.Thread(target=_print_all, args=(tool, output), daemon=True)
    reader.start()
    try:
        if tool.stdin is not None:
            with contextlib.suppress(BrokenPipeError), tool.stdin as file:
                file.write((text or "").encode())
        yield tool
    finally:
        tool.terminate()  # unless it has ended
        tool.wait()
        reader.join()


def _print_all(tool: subprocess.Popen[bytes], output: TextIO) -> None:
    assert tool.stdout is not None
    with lines_of(tool.stdout) as lines:
        for line in lines:
            try:
                output.write(printable(line))
                output.flush()
            except (OSError, ValueError):  # the output was closed
                tool.terminate()
                return
