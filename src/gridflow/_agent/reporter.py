"""Sends reports to the coordinator: in order, each exactly once; and the heartbeat.

The heartbeat has a thread of its own: while the supervisor is busy (with fetching a checkpoint,
lending rows, or ending a stubborn process), reports still go out and commands come in.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from gridflow._wire.commands import COMMANDS
from gridflow._wire.reports import REPORTS, ExecutorFrozen, Log
from gridflow.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._agent.executor import ExecutorWatch
    from gridflow._wire.client import CoordinatorClient
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Report


#: Characters of output that may be queued; beyond them the training process waits at its pipe.
_MOST_PENDING: Final = 4 << 20
_REPORTS_PER_EXCHANGE: Final = 100
_MOST_PER_EXCHANGE: Final = 1 << 20
_LINES_PER_REPORT: Final = 1_000
_MOST_PER_REPORT: Final = 1 << 17
#: The cost of a line in addition to its characters.
_LINE_COST: Final = 64
#: At the end: how long to retry an unreachable coordinator.
_SILENCE_SECONDS: Final = 2.0


class Reporter:
    """A queue of reports, and the exchange of reports for commands.

    `me`: What identifies this agent: ``rank``, ``agent``, ``launch``.
    `timeout`: Seconds to wait for an answer, and after which a coordinator that refuses or can't be
        reached counts as gone.
    `patience`: Seconds after which a silent coordinator counts as gone: it may be stopped for a
        while.
    `load`: Returns the load of the host, if it is time to tell it.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        me: dict[str, Any],
        timeout: float,
        patience: float,
        load: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._client, self._me, self._load = client, me, load
        self._timeout, self._patience = timeout, patience
        self._changed = threading.Condition()
        self._pending: list[dict[str, Any]] = []
        self._cost = 0
        self._next = 1
        self._done = 0
        self._last_contact = time.monotonic()
        self._silence = 0.0
        self._refused_since: float | None = None
        self._urgent = False
        self.coordinator_gone = False

    def report(self, report: Report) -> None:
        """Queue a report and have it sent at once."""
        with self._changed:
            self._append(report)
        self.hurry()

    def hurry(self) -> None:
        """End the current `wait`, or the next one."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()

    def lines(self, lines: list[str]) -> None:
        """Queue output lines; wait while too many are queued, so that none is dropped."""
        with self._changed:
            self._changed.wait_for(lambda: self._cost < _MOST_PENDING or self.coordinator_gone)
            for part in _parts(lines):
                self._append(Log(part))
            self._cost += _cost_of(lines)
            self._changed.notify_all()

    def exchange(self) -> list[Command]:
        """Send what is queued; return new commands, empty if the coordinator can't be reached.

        Raises `WireError`: The coordinator sent something other than commands.
        """
        with self._changed:
            self._urgent = False
            reports = self._next_reports()
            more = len(self._pending) > len(reports)
        try:
            message = {**self._me, "reports": reports, "done": self._done, "load": self._load()}
            answer = self._client.call("sync", message, self._timeout)
        except pa.ArrowException as error:
            if self._is_given_up(error):
                with self._changed:
                    self.coordinator_gone = True
                    self._changed.notify_all()
            return []
        self._last_contact = time.monotonic()
        self._silence, self._refused_since = 0.0, None
        with self._changed:
            heard = answer["heard"]
            is_heard = any(report["seq"] <= heard for report in reports)
            self._cost -= sum(_cost(each) for each in self._pending if each["seq"] <= heard)
            self._pending = [report for report in self._pending if report["seq"] > heard]
            self._urgent |= more and is_heard  # else it holds them back
            self._changed.notify_all()
        new = [command for command in answer["commands"] if command["id"] > self._done]
        if new:
            self._done = new[-1]["id"]
        return [COMMANDS.decode({k: v for k, v in each.items() if k != "id"}) for each in new]

    def _is_given_up(self, error: pa.ArrowException) -> bool:
        """Return whether the coordinator counts as gone after a call that failed."""
        now = time.monotonic()
        if isinstance(error, flight.FlightTimedOutError):
            # Counted by calls: while this process stood still, it has not been silent.
            self._silence, self._refused_since = self._silence + self._timeout, None
            return self._silence >= self._patience
        if self._refused_since is None:
            self._refused_since = now
        return now - self._refused_since > self._timeout

    def wait(self, with_lines: float, without: float) -> None:
        """Wait until it is time for the next exchange.

        `with_lines`: Seconds that output lines are gathered.
        `without`: Seconds, at least as many, when there are none.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._urgent, with_lines)
            self._changed.wait_for(lambda: self._urgent or self._cost > 0, without - with_lines)

    def flush(self, seconds: float) -> None:
        """Send everything that is queued, within some seconds."""
        give_up = time.monotonic() + seconds
        while self._pending and not self.coordinator_gone and time.monotonic() < give_up:
            before, waiting = self._last_contact, len(self._pending)
            self.exchange()
            if self._last_contact == before:  # no answer: the coordinator may be gone
                give_up = min(give_up, before + _SILENCE_SECONDS)
            if len(self._pending) == waiting:  # or it holds them back
                time.sleep(0.1)

    def _next_reports(self) -> list[dict[str, Any]]:
        """Return as many as fit into one exchange, and at least one."""
        taken, cost = 0, 0
        for report in self._pending[:_REPORTS_PER_EXCHANGE]:
            cost += _cost(report)
            if taken and cost > _MOST_PER_EXCHANGE:
                break
            taken += 1
        return self._pending[:taken]

    def _append(self, report: Report) -> None:
        self._pending.append({**REPORTS.encode(report), "seq": self._next})
        self._next += 1


def _cost(report: dict[str, Any]) -> int:
    return _cost_of(report["lines"]) if report["kind"] == Log.kind else 0


def _cost_of(lines: list[str]) -> int:
    return sum(map(len, lines)) + _LINE_COST * len(lines)


def _parts(lines: list[str]) -> Iterator[list[str]]:
    """Cut lines into reports."""
    part: list[str] = []
    size = 0
    for line in lines:
        if part and (size + len(line) > _MOST_PER_REPORT or len(part) == _LINES_PER_REPORT):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


_EAGER_SECONDS: Final = 2.0


class Heartbeat:
    """Exchanges reports for commands until it is stopped or the coordinator is gone.

    `interval`: Seconds between two exchanges.
    `quiet`: The same while all are at work: each exchange takes processor time from a step that all
        wait for.
    `is_quiet`: Returns whether all are at work.
    `eager`: Seconds between two exchanges at first, and for a while after each command: then the
        next command, for which the start of all tasks waits, often follows soon.
    `watch`: Watches the agent's executor.
    """

    def __init__(
        self,
        reporter: Reporter,
        interval: float,
        quiet: float,
        is_quiet: Callable[[], bool],
        eager: float,
        watch: ExecutorWatch | None = None,
    ) -> None:
        self._reporter, self._interval, self._quiet = reporter, interval, quiet
        self._is_quiet, self._eager, self._watch = is_quiet, eager, watch
        self._eager_until = time.monotonic() + _EAGER_SECONDS
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        #: Whether the executor was found frozen.
        self.executor_is_frozen = False
        #: The error that ended it.
        self.error: WireError | None = None
        self._thread = threading.Thread(target=self._beat, name="gridflow-heartbeat", daemon=True)
        self._thread.start()

    @property
    def is_beating(self) -> bool:
        """Whether the coordinator can still be reached."""
        return self._thread.is_alive() and not self._reporter.coordinator_gone

    def next_command(self) -> Command | None:
        """Wait for a command; None when it is time to check the process, or after `wake`."""
        try:
            return self._commands.get(timeout=self._pause())
        except queue.Empty:
            return None

    def wake(self) -> None:
        """End the current `next_command`, or the next one; send what is queued at once."""
        self._commands.put(None)
        self._reporter.hurry()

    def stop(self) -> None:
        """Stop the thread; then the caller may exchange by itself."""
        self._stopped.set()
        self._reporter.hurry()
        self._thread.join()

    def _pause(self) -> float:
        if self._is_quiet():
            return self._quiet
        return self._eager if time.monotonic() < self._eager_until else self._interval

    def _look_at_executor(self) -> None:
        problem = self._watch.look() if self._watch is not None else ""
        if problem:
            self._watch, self.executor_is_frozen = None, True
            self._reporter.report(ExecutorFrozen(problem))

    def _beat(self) -> None:
        try:
            while not self._stopped.is_set() and not self._reporter.coordinator_gone:
                self._look_at_executor()
                for command in self._reporter.exchange():
                    self._commands.put(command)
                    self._eager_until = time.monotonic() + _EAGER_SECONDS
                pause = self._pause()
                self._reporter.wait(min(self._interval, pause), pause)
        except WireError as error:
            self.error = error
        self._commands.put(None)
