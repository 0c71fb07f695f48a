"""Agents as processes of this machine: forked if possible, otherwise started.

The first launch of a driver starts a process that imports what agents need
(`gridflow._agent.forkserver.agents`); it stays for later launches. Both kinds of agents get the
same input through pipes, and behave alike.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gridflow._agent.forkserver import messages
from gridflow._agent.forkserver.agents import CODE
from gridflow._agent.forkserver.fingerprint import matters
from gridflow._agent.procfs import began, umask
from gridflow._files.disks import writing_to_temporary

if TYPE_CHECKING:
    from gridflow._feed.ingest.arrays import FileRows
    from gridflow._wire.payload import AgentPayload

_log = logging.getLogger(__name__)
_PROGRAM: Final = "gridflow._agent.forkserver.agents"
#: Its imports take half a second; a server that hasn't started by then is frozen or broken.
_PATIENCE_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 10.0
#: At the driver's exit it ends at once, except while agents are ending.
_EXIT_SECONDS: Final = 1.0


class AgentProcess:
    """An agent, from its start to its end.

    `rows`: The rows to spool, if its task is fed.
    """

    def __init__(self, payload: AgentPayload, rank: int, rows: FileRows | None) -> None:
        with writing_to_temporary():
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`words` closes it)
        read, write = os.pipe()
        with contextlib.closing(open(write, "wb")) as pipe:  # noqa: PTH123 (a descriptor)
            try:
                self.process = _fork_or_start(
                    payload.spec.hosts.launch.warm_seconds, read, self._errors.fileno()
                )
            finally:
                os.close(read)
            with contextlib.suppress(BrokenPipeError):  # it has already died; its watcher says why
                # Through the pipe: keys mustn't be on a command line or in a file.
                pickle.dump((payload, rank, rows, os.getpid()), pipe)
                pipe.flush()

    def words(self) -> str:
        """Return its last output. Call it once, after the process has ended."""
        with self._errors as errors:
            errors.seek(0)
            return errors.read().decode(errors="replace").strip()


class ForkedAgent:
    """A process forked by a server; used like a ``subprocess.Popen``.

    `place`: The end of a pipe that delivers its exit code, or nothing if its server dies.
    """

    def __init__(self, pid: int, place: int) -> None:
        self._place, self._lock = place, threading.Lock()
        self._code: int | None = None
        # The server keeps the id from being reused until it has reported the code.
        self._handle = os.pidfd_open(pid)

    def __del__(self) -> None:
        """Close both handles; earlier, another thread might be waiting for one of them."""
        os.close(self._place)
        os.close(self._handle)

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number, or None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code.

        Raises `subprocess.TimeoutExpired`: The process still runs.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("the agent", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, sig)

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def _look(self, seconds: float | None) -> int | None:
        give_up = None if seconds is None else time.monotonic() + seconds
        if self._code is None and _is_ready(self._place, give_up):
            with self._lock:
                if self._code is None:
                    told = os.read(self._place, CODE.size)
                    if told:
                        self._code = CODE.unpack(told)[0]
                    elif _is_ready(self._handle, give_up):
                        # Its server was killed, so it was told to end.
                        self._code = -signal.SIGTERM
        return self._code


def _is_ready(descriptor: int, give_up: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if give_up is None else 1000 * max(0, give_up - time.monotonic())))


class _Server:
    """A process of this driver that forks agents, for one environment."""

    def __init__(self, key: str, environment: dict[str, str], idle_seconds: float) -> None:
        self.key, self.owner = key, os.getpid()
        self._lock = threading.Lock()
        self._connection, other = socket.socketpair()
        with other:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", _PROGRAM, str(other.fileno())),
                    *(str(self.owner), str(began(self.owner)), str(idle_seconds)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[other.fileno()],
                start_new_session=True,
            )
        try:
            self._receive(_PATIENCE_SECONDS)
        except BaseException:
            self.retire()
            self.process.kill()
            self.process.wait()
            raise

    def fork(self, request: dict[str, Any], descriptors: list[int]) -> ForkedAgent:
        """Fork an agent.

        Raises `OSError`: The server has ended, or doesn't answer.
        """
        read, write = os.pipe()
        try:
            with self._lock:
                messages.send(self._connection, request, [*descriptors, write])
                answer = self._receive(_ANSWER_SECONDS)
            return ForkedAgent(answer["agent"], read)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)

    def retire(self) -> None:
        """Let it end once it has no agent."""
        self._connection.close()

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._connection.settimeout(seconds)
        try:
            received = messages.receive(self._connection)
        except messages.Malformed as error:
            raise OSError(str(error)) from error
        if received is None:
            raise OSError("it ended")
        if "why" in received[0]:
            raise OSError(received[0]["why"])
        return received[0]


_lock = threading.Lock()
#: The last one is used; earlier ones wait for the ends of their agents. They are polled regularly,
#: so that they don't become zombies.
_servers: list[_Server] = []
#: Where forking an agent failed, it isn't tried again.
_is_hopeless = False


def _fork_or_start(
    warm_seconds: float, payload: int, errors: int
) -> subprocess.Popen[bytes] | ForkedAgent:
    global _is_hopeless  # noqa: PLW0603 (of this process, as the servers are)
    importable = [path or str(Path.cwd()) for path in sys.path]
    environment = {**os.environ, "PYTHONPATH": ":".join(importable)}
    if warm_seconds and hasattr(os, "pidfd_open") and not _is_hopeless:
        for _ in range(2):  # one that was idle for too long may end just now
            try:
                return _fork(importable, environment, warm_seconds, payload, errors)
            except OSError as error:
                _log.debug("starting an agent instead of forking it: %s", error)
        _is_hopeless = True
    return subprocess.Popen(
        [sys.executable, "-m", "gridflow._agent.main"],
        stdin=payload,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment,
        start_new_session=True,  # Ctrl-C goes only to the driver, which then ends them in order
    )


def _fork(
    importable: list[str],
    environment: dict[str, str],
    warm_seconds: float,
    payload: int,
    errors: int,
) -> ForkedAgent:
    server = _server_for(environment, warm_seconds)
    request = {
        "path": importable,
        "work_dir": str(Path.cwd()),
        "environment": environment,
        "umask": umask(),
        "idle_seconds": warm_seconds,
    }
    try:
        return server.fork(request, [payload, errors])
    except OSError:
        with _lock:
            server.key = ""  # it isn't used again
        server.retire()
        raise


def _server_for(environment: dict[str, str], warm_seconds: float) -> _Server:
    """Return the server for an environment, as far as libraries see it at import."""
    key = json.dumps(sorted((n, v) for n, v in environment.items() if matters(n)))
    with _lock:
        # A server of the parent process, from before a fork, belongs to the parent.
        for server in list(_servers):
            if server.owner != os.getpid() or server.process.poll() is not None:
                server.retire()
                _servers.remove(server)
            elif server.key == key:
                return server
        for server in _servers:
            server.key = ""
            server.retire()
        _servers.append(_Server(key, environment, warm_seconds))
        return _servers[-1]


@atexit.register
def _retire_all() -> None:
    for server in _servers:
        if server.owner == os.getpid():
            server.retire()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(_EXIT_SECONDS)
