"""Agents as processes of this machine: forked if possible, otherwise started.

The first launch of a driver starts a fork server that imports what agents need, which is most of
the work of a short job; it stays for later launches. Both kinds of agents get the same input
through pipes, and behave alike.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from gridflow._agent.forkserver import messages
from gridflow._agent.forkserver.client import Forked, ForkServers, NotForked, retire_all
from gridflow._files.disks import writing_to_temporary

if TYPE_CHECKING:
    from gridflow._feed.ingest.arrays import FileRows
    from gridflow._wire.payload import AgentPayload

_log = logging.getLogger(__name__)
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


#: Where forking an agent failed, it isn't tried again.
_is_hopeless = False


def _fork_or_start(
    warm_seconds: float, payload: int, errors: int
) -> subprocess.Popen[bytes] | Forked:
    global _is_hopeless  # noqa: PLW0603 (of this process, as the servers are)
    importable = [path or str(Path.cwd()) for path in sys.path]
    environment = {**os.environ, "PYTHONPATH": ":".join(importable)}
    command = [sys.executable, "-m", "gridflow._agent.main"]
    if warm_seconds and not _is_hopeless:
        servers = ForkServers(warm_seconds, {}, os.getpid(), messages.AGENT)
        for _ in range(2):  # a server may be ended just now
            try:
                return _fork(servers, command, environment, payload, errors)
            except NotForked as error:
                _log.debug("starting an agent instead of forking it: %s", error)
        _is_hopeless = True
    return subprocess.Popen(
        command,
        stdin=payload,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        env=environment,
        start_new_session=True,  # Ctrl-C goes only to the driver, which then ends them in order
    )


def _fork(
    servers: ForkServers,
    command: list[str],
    environment: dict[str, str],
    payload: int,
    errors: int,
) -> Forked:
    agent = servers.fork(
        command, work_dir=Path.cwd(), environment=environment, descriptors=[payload, errors]
    )
    agent.settle()
    return agent


# At the driver's exit its server ends at once, except while agents are ending.
atexit.register(retire_all, _EXIT_SECONDS)
