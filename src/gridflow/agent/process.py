"""The training process as the agent sees it: start, output, state, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow.channel import CHANNEL_VARIABLE, Channel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: What Python is to run for a task.
TRAINING_PROGRAM: Final = ["-m", "gridflow.tfprocess.main"]
_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
#: Enough for the stacks of many threads that a crash prints behind the last words.
_TAIL_LINES: Final = 500
#: A line longer than this is passed on in pieces.
_LONGEST_LINE: Final = 1 << 20
_TERM_SECONDS: Final = 12.0
#: Output may still be held open by something that escaped the guardian.
_OUTPUT_SECONDS: Final = 5.0


class TrainingProcess:
    """A process under a guardian, with its output and its channel.

    Parameters
    ----------
    arguments : list of str
        What this Python is to run, such as `TRAINING_PROGRAM`.
    work_dir : Path
        The process's working directory.
    environment : mapping
        Set on top of this process's; a variable that is None is removed from it.
    inherited : sequence of int
        Descriptors that stay open in it as long as it lives.
    on_lines : callable
        Called with each batch of output lines, from one thread, in order.
    on_message : callable
        Called with each message of the channel, from one thread, in order.
    on_end : callable
        Called once the process has ended, from that thread.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        work_dir: Path,
        environment: Mapping[str, str | None],
        inherited: Sequence[int] = (),
        on_lines: Callable[[list[str]], None],
        on_message: Callable[[dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self.channel, theirs = Channel.pair()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.pid: int | None = None
        self._on_lines, self._on_message, self._on_end = on_lines, on_message, on_end
        variables = {**os.environ, **environment, CHANNEL_VARIABLE: str(theirs.fileno())}
        with theirs:
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDIAN), sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # one pipe: the order between the two is kept
                cwd=work_dir,
                env={name: value for name, value in variables.items() if value is not None},
                pass_fds=[theirs.fileno(), *inherited],
                start_new_session=True,
            )
        self._threads = [
            threading.Thread(target=self._read_output, name="gridflow-output", daemon=True),
            threading.Thread(target=self._read_channel, name="gridflow-channel", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number, or None while it runs."""
        return self._guardian.poll()

    def is_stopped(self) -> bool:
        """Return whether the process is frozen (SIGSTOP, or a debugger)."""
        if self.pid is None:
            return False
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    def kill(self) -> None:
        """End the process and everything that it started."""
        if self._guardian.poll() is None:
            self._guardian.terminate()
            try:
                self._guardian.wait(_TERM_SECONDS)
            except subprocess.TimeoutExpired:
                self._guardian.kill()
                self._guardian.wait()
        self.collect()

    def collect(self) -> None:
        """Read what output and messages are left, once the process has ended."""
        for thread in self._threads:
            thread.join(_OUTPUT_SECONDS)
        self.channel.close()

    def _read_output(self) -> None:
        stream = self._guardian.stdout
        if stream is None:
            raise AssertionError("the process was started without a pipe")
        rest = b""
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):
                *whole, rest = (rest + data).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    whole, rest = [*whole, rest], b""
                self._pass_on(whole)
            self._pass_on([rest] if rest else [])

    def _pass_on(self, raw: list[bytes]) -> None:
        if raw:
            lines = [line.decode("utf-8", "backslashreplace").rstrip("\r") for line in raw]
            self.tail.extend(lines)
            self._on_lines(lines)

    def _read_channel(self) -> None:
        for message in self.channel.receive():
            if message["kind"] == "hello":
                self.pid = message["pid"]
            self._on_message(message)
        self._guardian.wait()
        self._on_end()


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
