"""The training process, seen from the agent: start, output, state, end, and what it reports."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gridflow._agent.forkserver.client import Forked, NotForked
from gridflow._files import procfs
from gridflow._spec.gpus import VISIBLE
from gridflow._spec.printable import shortened
from gridflow._wire import child, reports
from gridflow._wire.channel import CHANNEL_VARIABLE, Channel
from gridflow._wire.child import Hello
from gridflow._wire.clock import Clock
from gridflow._wire.commands import Met
from gridflow._wire.failures import (
    LONGEST_SUMMARY,
    LONGEST_TRACEBACK,
    TaskFailure,
    hint_for,
    lost_a_peer,
)
from gridflow._wire.messages import OfTraining
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._agent.forkserver.client import ForkServers
    from gridflow._agent.reporter import Reporter
    from gridflow._agent.uploads import Uploads
    from gridflow._wire.failures import FailureKind
    from gridflow._wire.messages import Message


_Guardian: TypeAlias = "Forked | subprocess.Popen[bytes]"

#: What Python runs for a task.
TRAINING_PROGRAM: Final = ["-m", "gridflow._training.main"]
_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
#: Enough for the stacks of many threads that a crash prints after the last output.
_TAIL_LINES: Final = 500
#: Characters that are kept of each line.
_TAIL_LINE: Final = 4096
#: A line longer than this is passed on in pieces.
_LONGEST_LINE: Final = 1 << 20
#: The first bits of all bytes of a character in UTF-8 but its first.
_CONTINUED: Final = 0b10
_TERM_SECONDS: Final = 12.0
#: Output may still be held open by something that escaped the guardian.
_OUTPUT_SECONDS: Final = 5.0


class TrainingProcess:
    """A process under a guardian, with its output and its channel.

    `arguments`: What this Python runs, such as `TRAINING_PROGRAM`.
    `work_dir`: The process's working directory.
    `inherited`: Descriptors that stay open in it as long as it lives.
    `packages`: What it always imports, if it is forked.
    `servers`: The servers that fork it if that is safe; otherwise it is started.
    `on_lines`: Called with each batch of output lines, from one thread, in order.
    `on_message`: Called with each message of the channel, from one thread, in order; and with the
        error if something else arrived.
    `on_end`: Called once the process has ended, from that thread.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        work_dir: Path,
        environment: Mapping[str, str],
        inherited: Sequence[int] = (),
        packages: Sequence[str] = (),
        servers: ForkServers | None = None,
        on_lines: Callable[[list[str]], None],
        on_message: Callable[[Message | WireError], None],
        on_end: Callable[[], None],
    ) -> None:
        self.channel, self._theirs = Channel.pair()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._without_noise = silencer(environment)
        self.pid: int | None = None
        self._command = [sys.executable, *arguments]
        self._work_dir, self._environment = work_dir, environment
        self._inherited = tuple(inherited)
        self._on_lines, self._on_message, self._on_end = on_lines, on_message, on_end
        # One pipe for both outputs: the order between the two is kept.
        self._output, self._their_output = os.pipe()
        self._guardian = self._fork(servers, packages) or self._start()
        self._threads = [
            threading.Thread(target=self._read_output, name="gridflow-output", daemon=True),
            threading.Thread(target=self._read_channel, name="gridflow-channel", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _fork(self, servers: ForkServers | None, packages: Sequence[str]) -> _Guardian | None:
        if servers is None:
            return None
        try:
            return servers.fork(
                self._command,
                packages=packages,
                work_dir=self._work_dir,
                environment=self._environment,
                descriptors=[self._their_output, self._theirs.fileno(), *self._inherited],
                on_change=self._on_end,
            )
        except NotForked as why_not:
            self._say(str(why_not))
            return None

    def _start(self) -> _Guardian:
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARDIAN), *self._command],
            stdin=subprocess.DEVNULL,
            stdout=self._their_output,
            stderr=subprocess.STDOUT,
            cwd=self._work_dir,
            env={**self._environment, CHANNEL_VARIABLE: str(self._theirs.fileno())},
            pass_fds=[self._theirs.fileno(), *self._inherited],
            start_new_session=True,
        )
        self._let_go()
        return guardian

    def _say(self, why_not: str) -> None:
        self._on_lines([f"gridflow: starting a new process instead of forking one: {why_not}"])

    def _let_go(self) -> None:
        """Close the ends that the process has inherited, so that its exit can be noticed."""
        if self._their_output >= 0:
            os.close(self._their_output)
            self._their_output = -1
        self._theirs.close()

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number, or None while it runs.

        Call it regularly from the thread that created this object: a process that can't be forked
        is started here instead.
        """
        code = self._guardian.poll()
        if isinstance(self._guardian, Forked) and self._their_output >= 0:
            if self._guardian.is_forked:
                self._let_go()
            elif self._guardian.refusal is not None:
                self._say(self._guardian.refusal)
                self._guardian = self._start()
        return code

    def is_stopped(self) -> bool:
        """Return whether the process is frozen (SIGSTOP, or a debugger)."""
        return self.pid is not None and procfs.is_stopped(self.pid)

    def kill(self) -> None:
        """End the process and everything that it started."""
        if self._guardian.poll() is None:
            self._guardian.terminate()
            try:
                self._guardian.wait(_TERM_SECONDS)
            except subprocess.TimeoutExpired:
                self._guardian.kill()
                self._guardian.wait()
        self._let_go()
        self.collect()

    def collect(self) -> None:
        """Read the remaining output and messages after the process has ended."""
        for thread in self._threads:
            thread.join(_OUTPUT_SECONDS)
        self.channel.close()

    def _read_output(self) -> None:
        rest = b""
        with os.fdopen(self._output, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                *whole, rest = (rest + data).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    cut = _LONGEST_LINE
                    while cut and rest[cut] >> 6 == _CONTINUED:  # not amid a character
                        cut -= 1
                    whole, rest = [*whole, rest[:cut]], rest[cut:]
                self._pass_on(whole)
            self._pass_on([rest] if rest else [])

    def _pass_on(self, raw: list[bytes]) -> None:
        if raw:
            lines = [line.decode("utf-8", "backslashreplace").rstrip("\r") for line in raw]
            lines = self._without_noise(lines)
            self.tail.extend(shortened(line, _TAIL_LINE) for line in lines[-_TAIL_LINES:])
            if lines:
                self._on_lines(lines)

    def _read_channel(self) -> None:
        try:
            for message in self.channel.receive():
                if isinstance(message, Hello):
                    self.pid = message.pid
                self._on_message(message)
        except WireError as error:
            self._on_message(error)
        self._guardian.wait()
        self._on_end()


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Keeps meaningless messages of TensorFlow's libraries out of the logs. Pure.
#
# Some are printed before a log level can be set; others are harmless "errors": a GPU build looks
# for a driver wherever it runs, and reports a missing one as an error. Only lines of TensorFlow's
# own C++ files that begin with known words are left out; every other error is passed on.

#: TensorFlow's own variable: 0 asks for all messages. JAX sets 1 wherever it is imported.
LEVEL_VARIABLE: Final = "TF_CPP_MIN_LOG_LEVEL"
_TALKATIVE: Final = "0"
_NO_GPUS: Final = ("", "-1", "none", "void", "NoDevFiles")

#: As absl begins a line (``E0000 00:00:1795349661.766612   18460 port.cc:153] ``), and as
#: TensorFlow does (``2026-11-22 12:21:01.766612: I tensorflow/core/util/port.cc:153] ``).
_BEGIN: Final = (
    r"^(?:[IWE]\d{4} [\d:.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] )[\w./]+\.cc:\d+\] "
)
_ALWAYS: Final = (
    r"oneDNN custom operations are on\.",
    r"This TensorFlow binary is optimized ",
    r"Unable to register cu\w+ factory: ",
    r"computation placer already registered\.",
)
#: True and harmless for a task without a GPU. With a GPU, they say why it can't be used.
_WITHOUT_GPUS: Final = (
    r"failed call to cuInit: ",
    r"INTERNAL: CUDA Runtime error: Failed call to cudaGetRuntimeVersion: ",
    r"Could not find cuda drivers on your machine, GPU will not be used\.",
    r"Cannot dlopen some GPU libraries\.",
)
_WHOLE: Final = (
    r"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    r"^To enable the following instructions: .* rebuild TensorFlow with the appropriate ",
)


def silencer(environment: Mapping[str, str]) -> Callable[[list[str]], list[str]]:
    """Return a function that removes the meaningless lines from a process's output.

    `environment`: The process's. Nothing is removed if `LEVEL_VARIABLE` asks for all messages.
    """
    if environment.get(LEVEL_VARIABLE) == _TALKATIVE:
        return lambda lines: lines
    begun = list(_ALWAYS)
    if environment.get(VISIBLE, "all") in _NO_GPUS:
        begun += _WITHOUT_GPUS
    noise = re.compile("|".join((f"{_BEGIN}(?:{'|'.join(begun)})", *_WHOLE)))
    return lambda lines: [line for line in lines if noise.match(line) is None]


#: A process that reported a failure, or was told to leave, has this long to exit by itself.
_EXIT_SECONDS: Final = 5.0
_REPORTED_LINES: Final = 20


class ProcessSupervisor:
    """Starts a training process, handles its messages, ends it, and reports how it ended.

    Late news about a process that is over (an upload that fails late) stays with its supervisor,
    and doesn't affect the next process.

    `serves`: Whether it is a server, whose end isn't awaited.
    `frozen_after`: Seconds after which a frozen process counts as failed.
    `on_imported`: Called with what it imported, for later processes.
    `on_other`: Called with messages that aren't handled here.
    """

    def __init__(
        self,
        task: str,
        rank: int,
        generation: int,
        *,
        serves: bool,
        reporter: Reporter,
        uploads: Uploads,
        frozen_after: float,
        on_imported: Callable[[list[str]], None],
        on_other: Callable[[Message], None],
    ) -> None:
        self._task, self._rank, self._generation = task, rank, generation
        self._serves = serves
        self._reporter, self._uploads = reporter, uploads
        self._frozen_after, self._on_imported = frozen_after, on_imported
        self._clock = Clock(frozen_after / 2)  # what stops both isn't the process's failure
        self._on_other = on_other
        self._process: TrainingProcess | None = None
        self._raised: child.Raised | None = None
        self._raised_at = 0.0
        self._stopped_since: float | None = None
        self._is_ready = self._meets = False
        self._is_reported = False
        self._lock = threading.Lock()

    def start(self, **options: Any) -> None:
        """Start the process; see `TrainingProcess` for the options."""
        self._process = TrainingProcess(
            TRAINING_PROGRAM,
            on_lines=self._reporter.lines,
            on_message=self._take,
            **options,
        )

    @property
    def is_at_work(self) -> bool:
        """Whether the process is up, doesn't wait for another rank, and hasn't ended."""
        is_idle = self._meets or self._raised is not None or self._is_reported
        return self._is_ready and not is_idle

    def send(self, message: Message) -> None:
        if isinstance(message, Met):
            self._meets = False
        if self._process is not None:
            self._process.channel.send(message)

    def leave(self) -> None:
        """Give a process that is done, or a server, a moment to exit by itself."""
        if self._process is None or not (self._is_reported or self._serves):
            return
        self.send(child.Leave())
        give_up = time.monotonic() + _EXIT_SECONDS
        while self._process.poll() is None and time.monotonic() < give_up:
            time.sleep(0.02)

    def end(self) -> None:
        """End the process and all that it started; later failures don't count."""
        self._report_once()
        if self._process is not None:
            self._process.kill()

    def look(self) -> None:
        """Report that the process has ended or is frozen."""
        process = self._process
        if process is None or self._is_reported:
            return
        code = process.poll()
        now = time.monotonic()
        if code is None and self._raised is not None and now - self._raised_at > _EXIT_SECONDS:
            process.kill()
            code = 1
        if code is not None:
            process.collect()
            self._report_end(process, code)
            return
        awake = self._clock.now()
        if not process.is_stopped():
            self._stopped_since = None
        elif self._stopped_since is None:
            self._stopped_since = awake
        elif awake - self._stopped_since > self._frozen_after:
            limit = self._frozen_after
            self.fail("stopped", f"its process has been frozen (SIGSTOP) for {limit:g} seconds")

    def fail(self, kind: FailureKind, summary: str, **details: Any) -> None:
        """Report a failure of this process; only the first one counts."""
        if not self._report_once():
            return
        lines, stack = split_fault(list(self._process.tail) if self._process is not None else [])
        details["traceback"] = details.get("traceback") or shortened(stack, LONGEST_TRACEBACK)
        failure = TaskFailure(
            task=self._task,
            host=socket.gethostname(),
            kind=kind,
            summary=shortened(summary, LONGEST_SUMMARY),
            generation=self._generation,
            log_tail=tuple(lines[-_REPORTED_LINES:]),
            **details,
        )
        self._reporter.report(reports.Failed(failure))

    def _report_once(self) -> bool:
        """Return whether this is the first report of how the process ended."""
        with self._lock:
            first, self._is_reported = not self._is_reported, True
            return first

    def _report_end(self, process: TrainingProcess, code: int) -> None:
        raised = self._raised
        if raised is not None:
            exited = raised.exit_code is not None
            self.fail(
                raised.failure_kind or ("exit" if exited else "exception"),
                raised.summary,
                traceback=raised.traceback,
                exit_code=raised.exit_code if exited else abs(code),
                hint=raised.hint,
                consequence=raised.consequence,
            )
            return
        log = "\n".join(process.tail)
        hint, consequence = hint_for("", log, code)
        if code < 0:
            name = signal_name(-code)
            summary = f"its process was killed by {name}"
            self.fail("signal", summary, signal=name, hint=hint, consequence=consequence)
        else:
            summary = f"its process exited with code {code}"
            summary += "" if code else " before its work was done"
            self.fail("exit", summary, exit_code=code, hint=hint, consequence=lost_a_peer(log))

    def _take(self, message: Message | WireError) -> None:
        """Take a message of the process (called from the thread that reads its channel)."""
        match message:
            case child.Raised():
                self._raised, self._raised_at = message, time.monotonic()
            case child.MadeCheckpoint():
                header = {
                    "generation": self._generation,
                    "place": message.place,
                    "label": message.label,
                }
                self._uploads.checkpoint(Path(message.path), header, partial(self._sent, message))
            case child.Returned():
                self._on_other(message)
                if message.imported:
                    self._on_imported(message.imported)
                self._hand_over(message.result, Path(message.folder))
            case OfTraining():
                self._is_ready |= isinstance(message, reports.Ready)
                self._serves |= isinstance(message, reports.Joined)
                self._meets |= isinstance(message, reports.Meet)
                self._reporter.report(replace(message, generation=self._generation))
            case WireError():
                self.fail("exception", str(message))
            case _:
                self._on_other(message)

    def _sent(self, made: child.MadeCheckpoint, error: BaseException | None) -> None:
        """Note that the driver has a checkpoint, or why it hasn't."""
        # The process deletes those that newer ones have replaced, sent or not.
        is_replaced = isinstance(error, FileNotFoundError) and not Path(made.path).exists()
        if error is not None and (made.label is not None or not is_replaced):
            words = f"can't send a checkpoint: {error}"
            self._reporter.lines([f"gridflow: {words}"])
            if made.label is not None:  # the feeder of the stream waits for this one
                self.fail("exception", words)
        if made.is_awaited:  # arrived or not: the group is waiting for it
            self._reporter.report(reports.Saved(generation=self._generation))

    def _hand_over(self, result: dict[str, Any], folder: Path) -> None:
        """Send the files of the result, then report that the task succeeded."""
        names = result["files"]
        left = [len(names)]

        def sent(error: BaseException | None) -> None:
            left[0] -= 1
            if error is not None:
                self.fail("exception", f"can't send its result: {error}")
            elif left[0] <= 0 and self._report_once():
                self._reporter.report(reports.Succeeded(self._generation, result))

        if self._rank == 0:
            self._uploads.catch_up()
        for name in names:
            self._uploads.file(folder / name, {"kind": "result", "name": name}, sent)
        if not names:
            self._uploads.after(sent)  # the last checkpoint may still be on its way


def split_fault(lines: list[str]) -> tuple[list[str], str]:
    """Separate the output before a crash from the stack that Python's faulthandler printed."""
    for number, line in enumerate(lines):
        if line.startswith("Fatal Python error:"):
            dump = lines[number:]
            begin = next((i for i, each in enumerate(dump) if each.startswith("Current thread")), 0)
            end = next((i for i, each in enumerate(dump) if i > begin and not each.strip()), None)
            return lines[:number], "\n".join([dump[0], *dump[begin:end]])
    return lines, ""
