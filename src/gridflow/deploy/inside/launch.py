"""``gridflow launch``: runs one task; its role comes from outside, so all roles share one image."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._files.local import read_json, write_whole
from gridflow._spec.cluster import DATA, DISPATCHER, PS, TF_CONFIG, WORKER, facts_of
from gridflow._spec.command import with_patches
from gridflow._spec.exits import SIGNALLED, Exit, leave_message, message_place
from gridflow._spec.network import past_proxies
from gridflow._spec.option_groups import DATA_SERVICE
from gridflow._wire.failures import lost_a_peer
from gridflow.deploy.inside.child import Child
from gridflow.deploy.inside.identity import identify
from gridflow.deploy.inside.others import Others, longest_back_off, wait_for_peers
from gridflow.errors import GridflowError, InvalidArgument, StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gridflow._spec.cluster import ClusterMember

#: The number of earlier failures of this task, on targets that count and restart.
FAILURES: Final = "GRIDFLOW_FAILURES"
#: The job's first start in seconds since 1970, on targets that restart the whole job.
BEGAN: Final = "GRIDFLOW_BEGAN"
_LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True)
class LaunchArguments:
    """The options of ``gridflow launch``.

    `command` (tuple of str): The program; empty for a standard server.
    `classic_flags`: Also pass the four classic flags to the program.
    `restart_policy` ({"never", "on-failure", "exit-code"}): When to restart the program in this
        process; ``never`` if the target restarts.
    `pod_restart_policy` ({"never", "on-failure", "exit-code"} or None): When the target restarts
        this process, up to ``pod_restart_limit`` times; None if it doesn't.
    `retryable_exits` (tuple of int): Exit codes of the program below 128 that are retryable, too.
    `retryable_exit_code`: Exit with this code after every retryable failure.
    `stay`: Keep running when finished.
    `finished_dir`: The folder that records finished tasks.
    `resolve_timeout`: Seconds to wait until the peers' names resolve.
    `grace`: Seconds between SIGTERM and SIGKILL for the program.
    `deadline`: Seconds after which the program is stopped, including restarts. With
        ``GRIDFLOW_BEGAN``, the target's restarts are included, too.
    `flags` (mapping of str to str): The classic flags passed to the command itself.
    """

    command: tuple[str, ...] = ()
    classic_flags: bool = False
    restart_policy: str = "never"
    restart_limit: int = 3
    pod_restart_policy: str | None = None
    pod_restart_limit: int = 3
    retryable_exits: tuple[int, ...] = ()
    retryable_exit_code: int | None = None
    stay: bool = False
    finished_dir: str | None = None
    resolve_timeout: float = 300.0
    grace: float = 25.0
    deadline: float | None = None
    flags: Mapping[str, str] = field(default_factory=dict)


def launch(options: LaunchArguments, environ: Mapping[str, str] | None = None) -> int:
    """Run one task until it ends.

    Returns: The exit code: 0, from 1 to 127 for a permanent failure, 128 or more for a retryable
        one.
    """
    environ = os.environ if environ is None else environ
    try:
        who = identify(environ, options.command, options.flags)
        _say(f"this is {who}, from {who.source}")
        task = _Task(options, environ, who)
    except GridflowError as error:
        _say(str(error))
        leave_message(str(error))
        return int(Exit.USAGE)
    _on_signals(task.stop)
    note = _Note(options.finished_dir, who)
    if options.stay and (code := note.read()) is not None:
        _say(f"{who} already finished with exit code {code}; keeping the container running")
        task.stopped.wait()
        return 0
    try:
        code = task.run()
        cause = task.cause
    except GridflowError as error:
        cause = str(error)
        _say(cause)
        code = int(Exit.USAGE)
    if code:
        leave_message(cause)
    if options.stay and code != Exit.TRY_AGAIN and not task.stopped.is_set():
        note.write(code)
        _say(
            f"{who} finished with exit code {code}; keeping the container running, because this "
            "target restarts services"
        )
        task.stopped.wait()
        return 0
    return _mapped(code, options)


def _on_signals(stop: Callable[[int], None]) -> None:
    """Call a function in a thread with the number of each SIGTERM or SIGINT.

    A signal handler interrupts the main thread anywhere. Inside ``Event.wait``, the main thread may
    hold the lock that ``Event.set`` needs, which would deadlock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def follow() -> None:
        while True:
            for number in os.read(reader, 1):
                stop(number)

    threading.Thread(target=follow, name="gridflow-signals", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the wakeup pipe carries the signal's number


class _Task:
    """One task's program, with its restarts and its messages to other tasks."""

    def __init__(
        self, options: LaunchArguments, environ: Mapping[str, str], who: ClusterMember
    ) -> None:
        self.options = options
        self.who = who
        # Only a program with peers can lose one, and only Kubernetes has a termination message.
        overhear = bool(who.peers) or message_place() is not None
        self.child = Child(options.grace, overhear=overhear)
        self.failures = _count(environ.get(FAILURES, ""))
        services = (each for hosts in who.data_service.values() for each in hosts)
        own = past_proxies(environ, (*who.everyone, *services))
        self.environ = with_patches({**environ, **own, TF_CONFIG: who.tf_config})
        if dispatcher := who.data_service.get(DISPATCHER):
            self.environ = {**self.environ, DATA_SERVICE: dispatcher[0]}
        self.words = self._words()
        #: Set when the target asks this process to end.
        self.stopped = threading.Event()
        #: Set when nothing may be waited for or restarted any more.
        self.ending = threading.Event()
        #: Replaces the program's exit code when the program was stopped for another reason.
        self.verdict: int | None = None
        self._why = ""

    @property
    def cause(self) -> str:
        """What failed, followed by the end of the program's standard error."""
        tail = self.child.tail.rstrip()
        return f"{self._why}\n{tail}" if tail else self._why

    def stop(self, number: int) -> None:
        """Pass on a signal from the target."""
        self.stopped.set()
        self.ending.set()
        self.child.stop(number)

    def run(self) -> int:
        clock = self._clock()
        try:
            with self._own_folder(), self._others() as others:
                code = self._run_to_the_end(others)
                if self.verdict is not None and (self.verdict != Exit.OVERDUE or code):
                    code = self.verdict
                if code and not self._why:
                    self._why = f"{self.who} ended with exit code {int(code)}"
                self._tell(code, others)
        finally:
            if clock is not None:
                clock.cancel()
        return int(code)

    @contextlib.contextmanager
    def _own_folder(self) -> Iterator[None]:
        """Give a data service server a folder that survives its restarts in this process."""
        if not facts_of(self.who.role).is_data_service:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="gridflow-data-") as folder:
            self.words = [*self.words, folder, f"{self.options.resolve_timeout:g}"]
            yield

    def _others(self) -> Others:
        patience = self.options.resolve_timeout
        if self.options.pod_restart_policy not in {None, "never"}:
            patience += longest_back_off(self.options.pod_restart_limit)
        return Others(
            self.who,
            self.environ,
            patience=patience,
            meets=not self.options.stay,
            over=self._over,
            give_up=self._give_up,
            absent=self._absent,
            say=_say,
        )

    def _run_to_the_end(self, others: Others) -> int:
        others.begin()
        while True:
            code = self._run(others)
            if code or self.ending.is_set() or others.meet(self.ending):
                return code
            _say(f"another task has restarted and needs {self.who} again")

    def _absent(self, task: str) -> None:
        words = f"{task} has been gone for longer than a restart takes; stopping {self.who}"
        self._end(words, Exit.GIVEN_UP)

    def _clock(self) -> threading.Timer | None:
        if self.options.deadline is None:
            return None
        began = _count(self.environ.get(BEGAN, ""))
        gone = max(time.time() - began, 0.0) if began else 0.0
        clock = threading.Timer(max(self.options.deadline - gone, 0.0), self._overdue)
        clock.daemon = True
        clock.start()
        return clock

    def _words(self) -> list[str]:
        if facts_of(self.who.role).is_data_service:
            words = [sys.executable, "-m", "gridflow.deploy.inside.data_server"]
            workers = ",".join(self.who.data_service.get(DATA, []))
            return [*words, str(self.who), self.environ[DATA_SERVICE], workers]
        if not self.options.command:
            if self.who.role not in {PS, WORKER}:
                reason = f"{self.who} has no command; only ps and workers can run standard servers."
                raise InvalidArgument(reason + " Pass one: gridflow launch -- python train.py")
            return [sys.executable, "-m", "gridflow.deploy.inside.standard_server"]
        extra = self.who.flags if self.options.classic_flags else []
        return [*self.options.command, *extra]

    def _over(self) -> None:
        self._end(f"training has finished; stopping {self.who}", 0)

    def _give_up(self, task: str, code: int) -> None:
        words = f"{task} failed permanently with exit code {code}; stopping {self.who}"
        self._end(words, Exit.GIVEN_UP)

    def _overdue(self) -> None:
        words = f"{self.who} exceeded its deadline of {self.options.deadline:g} s; stopping it"
        self._end(words, Exit.OVERDUE)

    def _end(self, words: str, verdict: int) -> None:
        if self.verdict is None:
            self._say(words)
            self.verdict = verdict
        self.ending.set()
        self.child.stop()

    def _tell(self, code: int, others: Others) -> None:
        if self.stopped.is_set() or code == Exit.GIVEN_UP:
            return  # the target, or the task that failed, informs the others
        if code == Exit.TRY_AGAIN and self.options.stay:
            return  # the target restarts it
        if not code or self._is_final(code):
            # Don't wait again for tasks that never came up.
            others.tell(code, self.stopped, waits=code != Exit.TRY_AGAIN)

    def _is_final(self, code: int) -> bool:
        """Return whether the target won't restart this task after a failure."""
        policy = self.options.pod_restart_policy
        if policy is None or policy == "never" or code == Exit.OVERDUE:
            return True
        if policy == "exit-code" and code < SIGNALLED:
            return True
        return self.failures >= self.options.pod_restart_limit

    def _run(self, others: Others) -> int:
        pause = 1.0
        for attempt in range(self.options.restart_limit + 1):
            self._why = ""
            if attempt:
                others.begin(anew=True)
            code = self._once()
            if code == 0 or self.ending.is_set():
                return code
            again = self.options.restart_policy == "on-failure" or (
                self.options.restart_policy == "exit-code" and code >= SIGNALLED
            )
            if not again or attempt == self.options.restart_limit:
                break
            _say(f"{self.who} ended with exit code {code}; restarting it in {pause:.0f} s")
            if self.ending.wait(pause):
                return code
            pause = min(2 * pause, _LONGEST_PAUSE)
        why = f": {self.child.trouble}" if self.child.trouble else ""
        words = f"{self.who} failed with exit code {code}{why}"
        if self._why:
            _say(words)
        else:
            self._say(words)
        return code

    def _once(self) -> int:
        try:
            if facts_of(self.who.role).is_in_cluster:  # an evaluator doesn't connect to the others
                wait_for_peers(self.who, self.options.resolve_timeout, self.ending)
        except StartTimeout as error:
            self._say(str(error))
            return int(Exit.TRY_AGAIN)
        return self._judged(self.child.run(self.words, self.environ))

    def _judged(self, code: int) -> int:
        """Return the exit code, made retryable if the failure is worth another attempt."""
        if not 0 < code < SIGNALLED:
            return code
        if code in self.options.retryable_exits:
            return SIGNALLED + code
        if lost_a_peer(self.child.tail):
            lost = int(Exit.LOST)
            self._say(
                f"{self.who} ended with exit code {code} after losing a peer; exiting with {lost}"
            )
            return lost
        return code

    def _say(self, words: str) -> None:
        """Print a message, and remember it as the cause of a failure."""
        _say(words)
        self._why = words


def _count(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _mapped(code: int, options: LaunchArguments) -> int:
    if options.retryable_exit_code is not None and code >= SIGNALLED:
        return options.retryable_exit_code
    return code


class _Note:
    """The file that records that a task has finished."""

    def __init__(self, directory: str | None, who: ClusterMember) -> None:
        self.path = Path(directory) / f"{who.role}-{who.index}.json" if directory else None

    def read(self) -> int | None:
        said = None if self.path is None else read_json(self.path)
        code = said.get("code") if isinstance(said, dict) else None
        return code if isinstance(code, int) else None  # ignore an unreadable file

    def write(self, code: int) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps({"code": code}) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"gridflow launch: {text}\n")
    sys.stderr.flush()
