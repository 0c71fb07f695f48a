"""``gridflow launch``: one image for all roles, the role from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.inside.child import SIGNALLED, Child
from gridflow.deploy.inside.dialects import identify
from gridflow.deploy.inside.finish import FinishListener, finish_addresses, tell
from gridflow.errors import GridflowError, InvalidArgument, StartTimeout
from gridflow.spec.cluster import CHIEF, PS, WORKER
from gridflow.spec.tf_config import TF_CONFIG, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow.spec.tf_config import ClusterMember

#: sysexits.h: wrong usage is permanent, a failure to find the peers is worth another try.
USAGE: Final = 64
TRY_AGAIN: Final = SIGNALLED + 75
_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True)
class LaunchOptions:
    """What ``gridflow launch`` is told.

    Attributes
    ----------
    command : tuple of str
        The program; empty for a standard server.
    classic_flags : bool
        Hand the four classic flags to the program as well.
    restart_policy : {"never", "on-failure", "exit-code"}
        Inside this process; ``never`` where the target restarts.
    restart_limit : int
    retryable_exits : tuple of int
        Exit codes below 128 of the program that are worth another try, too.
    retryable_exit_code : int or None
        End with this one code after every retryable failure.
    stay : bool
        Stay alive once finished.
    finished_dir : str or None
        Where to note that the task has finished.
    resolve_timeout : float
        Seconds to wait for the peers' names.
    grace : float
        Seconds between SIGTERM and SIGKILL for the program.
    flags : mapping of str to str
        The classic flags given to the command itself.
    """

    command: tuple[str, ...] = ()
    classic_flags: bool = False
    restart_policy: str = "never"
    restart_limit: int = 3
    retryable_exits: tuple[int, ...] = ()
    retryable_exit_code: int | None = None
    stay: bool = False
    finished_dir: str | None = None
    resolve_timeout: float = 300.0
    grace: float = 25.0
    flags: Mapping[str, str] = field(default_factory=dict)


def launch(options: LaunchOptions, environ: Mapping[str, str] | None = None) -> int:
    """Run one task to its end.

    Returns
    -------
    int
        The exit code: 0, a permanent failure from 1 to 127, a retryable one from 128.
    """
    environ = os.environ if environ is None else environ
    child = Child(options.grace)
    stopped = threading.Event()

    def stop(number: int) -> None:
        stopped.set()
        child.stop(number)

    _on_signals(stop)
    try:
        who = identify(environ, options.command, options.flags)
        _say(f"this is {who}, by {who.source}")
        servers = finish_addresses(environ)
        note = _Note(options.finished_dir, who)
        if options.stay and (code := note.read()) is not None:
            _say(f"{who} has finished before, with exit code {code}; staying")
            stopped.wait()
            return 0
        wait_for_peers(who, options.resolve_timeout, stopped)
        code = _Task(options, environ, who, child, servers, stopped).run()
    except StartTimeout as error:
        _say(str(error))
        return _mapped(TRY_AGAIN, options)
    except GridflowError as error:
        _say(str(error))
        return USAGE
    if options.stay and not stopped.is_set():
        note.write(code)
        _say(f"{who} has finished with exit code {code}; staying, as this target restarts services")
        stopped.wait()
        return 0
    return _mapped(code, options)


def _on_signals(stop: Callable[[int], None]) -> None:
    """Call a function with the number of each signal that asks for the end, in a thread.

    A handler runs in the middle of whatever the main thread does. If that is ``Event.wait``, it may
    hold the lock that ``Event.set`` needs, and neither would ever return.
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
        signal.signal(number, lambda *_: None)  # the byte in the pipe says it all


class _Task:
    """The program of one task, with its restarts and its part in the end of the servers."""

    def __init__(
        self,
        options: LaunchOptions,
        environ: Mapping[str, str],
        who: ClusterMember,
        child: Child,
        servers: dict[str, list[str]],
        stopped: threading.Event,
    ) -> None:
        self.options = options
        self.who = who
        self.child = child
        self.servers = servers
        self.stopped = stopped
        self.environ = {**environ, TF_CONFIG: who.tf_config}
        self.serves = not options.command or who.role in servers
        self.over = False

    def run(self) -> int:
        if not self.serves:
            code = self._run(self._words())
            self._tell(code)
            return code
        listening = self.servers.get(self.who.role)
        if not listening:
            return self._run(self._words())
        awaited = {f"{role}:{i}" for role, count in self._trainers().items() for i in range(count)}
        listener = FinishListener(listening[self.who.index], awaited, self._end)
        try:
            code = self._run(self._words())
        finally:
            listener.close()
        return 0 if self.over else code

    def _words(self) -> list[str]:
        if not self.options.command:
            if self.who.role not in {PS, WORKER}:
                reason = f"{self.who} has no command, and only ps and workers run standard servers."
                raise InvalidArgument(reason + " Give one: gridflow launch -- python train.py")
            return [sys.executable, "-m", "gridflow.deploy.inside.standard_server"]
        extra = self.who.flags if self.options.classic_flags else []
        return [*self.options.command, *extra]

    def _trainers(self) -> dict[str, int]:
        """Return who tells the servers that training is over, with the number of their tasks."""
        role = CHIEF if CHIEF in self.who.cluster else WORKER
        return {role: len(in_order(self.who.cluster.get(role, [])))}

    def _end(self) -> None:
        _say("training is over; ending the server")
        self.over = True
        self.child.stop()

    def _tell(self, code: int) -> None:
        # A target that restarts a failed task itself isn't done with it yet.
        final = code == 0 or self.options.restart_policy != "never" or self.options.stay
        if not self.servers or self.who.role not in self._trainers() or not final:
            return
        if deaf := tell(self.servers, str(self.who), code):
            _say(f"these servers did not hear that training is over: {', '.join(deaf)}")

    def _run(self, words: list[str]) -> int:
        pause = 1.0
        for attempt in range(self.options.restart_limit + 1):
            code = _raised(self.child.run(words, self.environ), self.options)
            if self.over or code == 0 or self.stopped.is_set():
                return code
            again = self.options.restart_policy == "on-failure" or (
                self.options.restart_policy == "exit-code" and code >= SIGNALLED
            )
            if not again or attempt == self.options.restart_limit:
                break
            _say(f"{self.who} ended with exit code {code}; starting it again in {pause:.0f} s")
            if self.stopped.wait(pause):
                return code
            pause = min(2 * pause, _LONGEST_PAUSE)
        _say(f"{self.who} failed with exit code {code}")
        return code


def _raised(code: int, options: LaunchOptions) -> int:
    """Return the code, a chosen permanent one turned into a retryable one."""
    return SIGNALLED + code if code in options.retryable_exits and 0 < code < SIGNALLED else code


def _mapped(code: int, options: LaunchOptions) -> int:
    if options.retryable_exit_code is not None and code >= SIGNALLED:
        return options.retryable_exit_code
    return code


class _Note:
    """The file by which a task remembers that it has finished."""

    def __init__(self, directory: str | None, who: ClusterMember) -> None:
        self.path = Path(directory) / f"{who.role}-{who.index}.json" if directory else None

    def read(self) -> int | None:
        if self.path is None or not self.path.exists():
            return None
        return int(json.loads(self.path.read_text(encoding="utf-8"))["code"])

    def write(self, code: int) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"code": code}) + "\n", encoding="utf-8")
        new.replace(self.path)


def wait_for_peers(
    who: ClusterMember,
    seconds: float,
    stopped: threading.Event,
    resolve: Callable[..., Any] = socket.getaddrinfo,
) -> None:
    """Wait until every peer's name resolves.

    TensorFlow gives up at once on a name that doesn't resolve yet, while a target publishes names
    one after the other.

    Raises
    ------
    StartTimeout
        If one doesn't within ``seconds``; the message names them all.
    """
    waiting = list(dict.fromkeys(address.rpartition(":")[0] for address in who.peers))
    end = time.monotonic() + seconds
    while waiting:
        waiting = [host for host in waiting if not _resolves(host.strip("[]"), resolve)]
        if not waiting or stopped.is_set():
            return
        if time.monotonic() >= end:
            reason = (
                f"{', '.join(waiting)} did not resolve in {seconds:g} s. Are all tasks started,"
            )
            raise StartTimeout(reason + " and does their Service publish unready addresses?")
        stopped.wait(_PAUSE)


def _resolves(host: str, resolve: Callable[..., Any]) -> bool:
    try:
        resolve(host, None)
    except OSError:
        return False
    return True


def _say(text: str) -> None:
    sys.stderr.write(f"gridflow launch: {text}\n")
    sys.stderr.flush()
