"""One training process of a task, from its start to its end."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.process import TRAINING_PROGRAM, TrainingProcess, signal_name
from gridflow._spec.printable import shortened
from gridflow._wire import child, reports
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
    from collections.abc import Callable

    from gridflow._agent.reporter import Reporter
    from gridflow._agent.uploads import Uploads
    from gridflow._wire.failures import FailureKind
    from gridflow._wire.messages import Message

#: A process that reported a failure, or was told to leave, has this long to exit by itself.
_EXIT_SECONDS: Final = 5.0
_TAIL_LINES: Final = 20


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
            log_tail=tuple(lines[-_TAIL_LINES:]),
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
