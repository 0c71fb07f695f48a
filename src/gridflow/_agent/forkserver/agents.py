"""Forks agents: ``python -m gridflow._agent.forkserver.agents``, see `_launch.local_agents`.

An agent imports pyarrow and its transport, which is most of the work of a short job. This process
has imported them, and forks an agent for each request of the driver. It can be reached only through
the socket inherited from the driver. It runs nothing itself. It ends with the driver, when it has
been idle for long enough, or when the driver has closed the socket and no agent is left; the agents
end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.forkserver import child, messages, safety
from gridflow._agent.guardian import PR_SET_PDEATHSIG
from gridflow._agent.procfs import began

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The exit code with which an agent ended, or minus the number of the signal.
CODE: Final = struct.Struct("i")
_AGENT: Final = "gridflow._agent.main"
#: What agents import in addition, depending on their work.
_LATE: Final = (
    "gridflow._spec.job",
    "gridflow._feed.ingest.arrays",
    "gridflow._agent.forkserver.client",
)


def main(arguments: Sequence[str]) -> None:
    """Serve until it is time to end; in a forked process: be the agent.

    `arguments`: Descriptor of the socket to the driver; the driver's process id, and the moment at
        which it started (field 22 of its ``/proc/PID/stat``); seconds to stay without an agent.
    """
    descriptor, driver, driver_began, idle = arguments
    server = AgentForkServer(
        socket.socket(fileno=int(descriptor)), int(driver), int(driver_began), float(idle)
    )
    parent = server.run()
    if parent is not None:
        from gridflow._agent import main as agent

        agent.main(parent)


class AgentForkServer:
    """Forks agents.

    `connection`: To the driver, which sends one request at a time.
    `driver`, `driver_began`: With whom it ends; the moment tells it from a later process with the
        same id.
    `idle_seconds`: How long it stays without an agent.
    """

    def __init__(
        self, connection: socket.socket, driver: int, driver_began: int, idle_seconds: float
    ) -> None:
        self._connection = connection
        self._driver, self._driver_began = driver, driver_began
        self._idle_seconds = idle_seconds
        self._idle_since = time.monotonic()
        #: Where to write how each agent ended.
        self._agents: dict[int, int] = {}
        self._is_retired = False

    def run(self) -> int | None:
        """Serve until it is time to end.

        Returns: In a process that was forked to be an agent, which returns, too: its parent's id.
        """
        refusal = safety.why_not(_import())
        if refusal is not None:
            messages.send(self._connection, {"kind": "refused", "why": refusal}, None)
            return None
        messages.send(self._connection, {"kind": "ready"}, None)
        self._idle_since = time.monotonic()  # to import took longer than some let it be idle
        wake, _ = child.wake_by_signals()
        driver = os.pidfd_open(self._driver)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(driver, select.POLLIN)
        poll.register(self._connection, select.POLLIN)
        while began(self._driver) == self._driver_began and self._is_wanted():
            ready = dict(poll.poll(self._patience()))
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 1 << 12)
            self._reap()
            if self._connection.fileno() in ready:
                parent = self._serve()
                if parent is not None:
                    return parent
                if self._is_retired:
                    poll.unregister(self._connection)
                    self._connection.close()
        return None

    # ---------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        if self._agents:
            return True
        return not self._is_retired and time.monotonic() < self._idle_since + self._idle_seconds

    def _patience(self) -> float | None:
        """Return the milliseconds until the next deadline."""
        if self._agents:
            return None
        return 1000 * max(0.0, self._idle_since + self._idle_seconds - time.monotonic()) + 10

    def _reap(self) -> None:
        for pid, place in list(self._agents.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            # Before its id is free for another process: the driver might send that a signal.
            with contextlib.suppress(OSError):
                os.write(place, CODE.pack(code))
            os.waitpid(pid, 0)
            os.close(place)
            del self._agents[pid]
            self._idle_since = time.monotonic()

    def _serve(self) -> int | None:
        """Answer a request; return the server's id in the process that was forked for it."""
        try:
            received = messages.receive(self._connection)
        except (OSError, messages.Malformed):
            received = None
        if received is None:
            self._is_retired = True
            return None
        request, descriptors = received
        payload, errors, place = descriptors
        server = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads: they were looked at
            pid = os.fork()
        if pid:
            os.close(payload)
            os.close(errors)
            self._agents[pid] = place
            self._idle_seconds = float(request["idle_seconds"])
            with contextlib.suppress(OSError):  # a driver that is gone is seen by the loop
                messages.send(self._connection, {"kind": "forked", "agent": pid}, None)
            return None
        _become(request, payload, errors)
        return server


def _import() -> set[int]:
    """Import what agents need; return the threads that are known to survive a fork."""
    gc.disable()
    before = safety.threads()
    importlib.import_module("numpy")  # its linear algebra ends its threads before a fork
    survivors = safety.threads() - before | {os.getpid()}
    for name in (_AGENT, *_LATE):
        importlib.import_module(name)
    # No collection touches what is shared, here or in an agent.
    gc.freeze()
    return survivors


def _become(request: dict[str, Any], payload: int, errors: int) -> None:
    """Turn a forked process into what ``python -m gridflow._agent.main`` would be."""
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    child.fresh_signals()
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor, place in ((payload, 0), (null, 1), (errors, 2)):
        os.dup2(descriptor, place)
        os.close(descriptor)
    child.close_all_but()
    os.umask(request["umask"])
    os.chdir(request["work_dir"])
    os.environ.clear()
    os.environ.update(request["environment"])
    child.fresh_python(request["work_dir"])
    # As Python's start makes it: the folder in front, behind it nothing twice.
    sys.path[:] = [request["work_dir"], *dict.fromkeys([*request["path"], *sys.path[1:]])]
    child.show_command([sys.executable, "-m", _AGENT])
    sys.argv = [str(sys.modules[_AGENT].__file__)]


if __name__ == "__main__":
    main(sys.argv[1:])
