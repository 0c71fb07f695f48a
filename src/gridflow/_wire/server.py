"""The coordinator's only port: an Arrow Flight server with mutual TLS.

Control messages are actions with JSON bodies; files travel as streams of byte chunks. Nothing that
arrives is unpickled. A peer without the job's certificate fails in the TLS handshake, before any of
this code runs.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyarrow import flight

from gridflow._files.local import is_refusal, open_file, open_own
from gridflow._wire import arrow_flight
from gridflow._wire.arrow_flight import telling_why
from gridflow._wire.headers import AN_AGENT
from gridflow._wire.messages import read
from gridflow._wire.transfer import CHUNK_SCHEMA, IncomingFile, chunks, receive
from gridflow.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow._spec.network import Network
    from gridflow._wire.identity import Identity
    from gridflow._wire.transfer import Spared

#: Methods of the handler that agents call.
_ACTIONS: Final = ("register", "sync", "offer", "stored", "locate")
_CODE: Final = frozenset({"function", "modules"})
#: Kept in memory if the disk refuses it: it is what the whole training was for.
_SPARED: Final = "result"
_binding = threading.Lock()


class Handler(Protocol):
    """Answers the agents. The server calls it from any thread."""

    def register(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer an agent that registers."""
        ...

    def sync(self, message: dict[str, Any]) -> dict[str, Any]:
        """Take an agent's reports, return its commands."""
        ...

    def receive_file(self, header: dict[str, Any]) -> Path:
        """Return a temporary path to write an arriving file to."""
        ...

    def file_received(
        self, header: dict[str, Any], path: Path, spared: Spared | None = None
    ) -> None:
        """Commit a file that arrived complete. Its temporary path is deleted afterwards.

        What the disk has refused isn't at the path, but in memory.
        """
        ...

    def disk_refused(self, header: dict[str, Any], error: OSError) -> str:
        """Return what to tell the sender of a file that can't be written here."""
        ...

    def find_file(self, header: dict[str, Any]) -> Path:
        """Return the path of the file that an agent asks for."""
        ...

    def offer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return where an agent may write a checkpoint itself."""
        ...

    def stored(self, message: dict[str, Any]) -> dict[str, Any]:
        """Commit a checkpoint that an agent has written itself."""
        ...

    def locate(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return where an agent may read a checkpoint itself."""
        ...


class CoordinatorServer(arrow_flight.JobServer):
    """Serve one job on one interface of this machine.

    `host`: The address to bind.
    `port`: 0: any free port.
    """

    def __init__(self, host: str, identity: Identity, handler: Handler, port: int = 0) -> None:
        super().__init__(host, port, identity)
        self._handler = handler

    def do_action(self, context: Any, action: flight.Action) -> Iterator[flight.Result]:
        """Answer a message."""
        self.heard(context)
        if action.type not in _ACTIONS:
            raise flight.FlightServerError(
                f"unknown action {action.type!r}; supported: {', '.join(_ACTIONS)}"
            )
        with telling_why():
            handle = getattr(self._handler, action.type)
            answer = handle(read(AN_AGENT, action.body.to_pybytes()))
        yield flight.Result(pa.py_buffer(json.dumps(answer).encode()))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002
        """Receive a file. It counts only once its last byte is on disk."""
        self.heard(context)
        with telling_why():
            header = read(AN_AGENT, descriptor.command)
            path = self._handler.receive_file(header)
            try:
                with IncomingFile(path, spares=header["kind"] == _SPARED) as file:
                    receive(reader, file, AN_AGENT)
                    spared = file.finish()
                self._handler.file_received(header, path, spared)
            except OSError as error:
                if not is_refusal(error):
                    raise
                words = self._handler.disk_refused(header, error)
                raise flight.FlightServerError(words) from error
            finally:
                with contextlib.suppress(OSError):  # a read-only disk says so even if it's missing
                    path.unlink(missing_ok=True)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Send a file."""
        self.heard(context)
        with telling_why():
            header = read(AN_AGENT, ticket.ticket)
            path = self._handler.find_file(header)
            # Links aren't followed, and code for the tasks must belong to this user. What is sent
            # is the file that was checked: another may lie at the path by then.
            file = (open_own if header["kind"] in _CODE else open_file)(path)
        return flight.GeneratorStream(CHUNK_SCHEMA, chunks(file))

    # Everything else that Flight offers is refused by the base class: NotImplementedError.


def listen(network: Network, identity: Identity, handler: Handler) -> CoordinatorServer:
    """Return a server on the network's address and the first free port of its range.

    Raises `NetworkError`: The address can't be bound, or no port of the range is free.
    """
    host = network.host or ""
    first, last = network.ports or (0, 0)
    for port in range(first, last + 1):
        with _binding:  # two jobs of one driver mustn't probe the same port at the same time
            problem = _problem_with(host, port)
            if problem is None:
                return CoordinatorServer(host, identity, handler, port)
    where = f"any of the ports {first} to {last}" if last > first else f"port {first}"
    place = where if first else "any port"
    raise NetworkError(f"the coordinator can't listen on {place} of {host}: {problem}.")


def _problem_with(host: str, port: int) -> str | None:
    """Return why an address can't be bound; gRPC would share a port that is in use."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return None


def inside(root: Path, name: str) -> Path:
    """Return ``root/name`` for a relative name that stays inside the folder.

    Names that lead out of it, and links, are refused.
    """
    parts = PurePosixPath(name).parts
    is_path = bool(parts) and ".." not in parts and parts[0] not in {"/", "//"} and "\0" not in name
    path = root
    for part in parts if is_path else ():
        path /= part
        is_path = is_path and not path.is_symlink()
    if not is_path:
        raise flight.FlightServerError(
            f"a file name must be a path inside its folder, without links; got {name!r}"
        )
    return path
