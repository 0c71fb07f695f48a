"""The driver's registry of nodes, their failures, and requests to stop.

The classes have TensorFlowOnSpark's interface. The original's server unpickles whatever anyone
sends; this one only talks to clients that hold its key, in msgpack. A client in the server's
process finds the key automatically. So does a client of the same user on the same host, in a file
that only the user can read and that is deleted with the server's process. Elsewhere, set the
variable ``TFOS_SERVER_KEY`` for both server and client: a secret of at least 16 random bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gridflow._agent.folder import temporary_folder
from gridflow._files.local import check_own, open_own, write_whole
from gridflow._wire import mutual_tls
from gridflow._wire.identity import random_key, strong_key
from gridflow.compat.tfos import util
from gridflow.errors import GridflowError, InvalidArgument, NetworkError, StartTimeout

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

TFOS_SERVER_PORT: Final = "TFOS_SERVER_PORT"
TFOS_SERVER_HOST: Final = "TFOS_SERVER_HOST"
TFOS_SERVER_KEY: Final = "TFOS_SERVER_KEY"
MAX_RETRIES: Final = 3
_POLL_SECONDS: Final = 0.1
_LENGTH: Final = struct.Struct(">I")
_MOST_BYTES: Final = 64 << 20
_KEY_FILE: Final = "key"
#: Keys of this process's servers, by port.
_keys: dict[int, bytes] = {}


class Reservations:
    """The registered nodes. Thread-safe.

    Parameters
    ----------
    required : int
        Expected number of nodes.
    primary_keys : sequence of str, optional
        The keys that identify a node in `upsert`.
    """

    def __init__(
        self, required: int, primary_keys: Iterable[str] = ("host", "executor_id")
    ) -> None:
        self.required = required
        self.primary_keys = tuple(primary_keys)
        self.lock = threading.RLock()
        self.reservations: list[dict[str, Any]] = []

    def add(self, meta: dict[str, Any]) -> None:
        """Add a node."""
        with self.lock:
            self.reservations.append(meta)

    def upsert(self, meta: dict[str, Any]) -> None:
        """Add a node, or update the one with the same primary keys."""
        with self.lock:
            mine = [meta.get(key) for key in self.primary_keys]
            for place, other in enumerate(self.reservations):
                if [other.get(key) for key in self.primary_keys] == mine:
                    self.reservations[place] = {**other, **meta}
                    return
            self.reservations.append(meta)

    def done(self) -> bool:
        """Return whether all nodes have registered."""
        with self.lock:
            return len(self.reservations) >= self.required

    def get(self) -> list[dict[str, Any]]:
        """Return the nodes."""
        with self.lock:
            return list(self.reservations)

    def remaining(self) -> int:
        """Return the number of missing nodes."""
        with self.lock:
            return self.required - len(self.reservations)


class MessageSocket:
    """Sends and receives messages (None, booleans, numbers, strings, bytes, lists, dicts)."""

    def receive(self, sock: Any) -> Any:
        """Wait for a message."""
        if isinstance(sock, mutual_tls.Connection):
            return msgspec.msgpack.decode(sock.recv_bytes(_MOST_BYTES))
        length = _LENGTH.unpack(_exactly(sock, _LENGTH.size))[0]
        if length > _MOST_BYTES:
            raise GridflowError(f"message too large: {length:,} bytes (limit {_MOST_BYTES:,}).")
        return msgspec.msgpack.decode(_exactly(sock, length))

    def send(self, sock: Any, msg: Any) -> None:
        """Send a message."""
        content = msgspec.msgpack.encode(msg)
        if isinstance(sock, mutual_tls.Connection):
            sock.send_bytes(content)
        else:
            sock.sendall(_LENGTH.pack(len(content)) + content)


class Server(MessageSocket):
    """Registers nodes, and tells each of them about the others.

    Parameters
    ----------
    count : int
        Expected number of nodes.
    primary_keys : sequence of str, optional
        See `Reservations`.
    key : bytes, optional
        A secret of at least 16 bytes. Default: the value of ``TFOS_SERVER_KEY``, or a random key.
    host : str, optional
        The address to bind. Default: this host's address, or all interfaces if
        ``TFOS_SERVER_HOST`` names the host.

    Attributes
    ----------
    done : bool
        Whether a client has requested a stop, which ends streaming.
    """

    def __init__(
        self,
        count: int,
        primary_keys: Iterable[str] = ("host", "executor_id"),
        *,
        key: bytes | None = None,
        host: str | None = None,
    ) -> None:
        if count <= 0:
            raise InvalidArgument(f"count must be at least 1; got {count}.")
        self.reservations = Reservations(count, primary_keys)
        self.done = False
        #: The key derived from the secret, see `identity.strong_key`.
        self.key = strong_key(key, "key=") if key else _key_of_environment() or random_key()
        self._host = host
        self._state: dict[str, Any] = {"finished": False, "failure": ""}
        self._door: mutual_tls.Door | None = None
        self._files = contextlib.ExitStack()
        self._port = 0

    def start(self) -> tuple[str, int]:
        """Start listening; return host and port."""
        listener = self.start_listening_socket()
        self._port = int(listener.getsockname()[1])
        _keys[self._port] = self.key
        with contextlib.suppress(OSError):  # without the file, other processes need the variable
            folder = self._files.enter_context(temporary_folder(_key_prefix(self._port)))
            write_whole(folder / _KEY_FILE, self.key)
        self._door = mutual_tls.Door(listener, self.key, self._serve)
        address = (self.get_server_ip(), self._port)
        _log.info("listening for nodes at %s:%d", *address)
        return address

    def stop(self) -> None:
        """Stop listening."""
        self.done = True
        if self._door is not None:
            self._door.close()
        if _keys.get(self._port) == self.key:
            del _keys[self._port]
        self._files.close()

    def await_reservations(
        self, sc: Any = None, status: Mapping[str, str] | None = None, timeout: float = 600
    ) -> list[dict[str, Any]]:
        """Wait until all nodes have registered, and return them.

        Parameters
        ----------
        sc : SparkContext, optional
            Not used.
        status : mapping, optional
            Waiting stops when it contains ``"error"``.
        timeout : float, default 600
            Seconds to wait.

        Raises
        ------
        GridflowError
            The error in `status`.
        StartTimeout
            If nodes are still missing after `timeout`.
        """
        del sc
        give_up = time.monotonic() + timeout
        while not self.reservations.done():
            if status and "error" in status:
                raise GridflowError(str(status["error"]))
            if time.monotonic() > give_up:
                raise StartTimeout(
                    f"{self.reservations.remaining()} of {self.reservations.required} nodes did "
                    f"not register within {timeout:g} seconds (reservation_timeout)."
                )
            time.sleep(_POLL_SECONDS)
        return self.reservations.get()

    def note(self, **state: Any) -> None:
        """Update the state that clients see: ``finished``, ``failure`` (the first one is kept)."""
        if self._state["failure"]:
            state.pop("failure", None)
        self._state = {**self._state, **state}

    @property
    def failure(self) -> str:
        """Why the cluster failed; empty if it hasn't."""
        return str(self._state["failure"])

    def get_server_ip(self) -> str:
        """Return the name or address at which clients reach the server."""
        return os.environ.get(TFOS_SERVER_HOST) or self._host or util.get_ip_address()

    def get_server_ports(self) -> list[int]:
        """Return the ports allowed by ``TFOS_SERVER_PORT``; [0] means any port."""
        words = os.environ.get(TFOS_SERVER_PORT, "0")
        first, _, last = words.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or words.endswith("-"):
            raise InvalidArgument(
                f"{TFOS_SERVER_PORT} must be a port such as 8888 or a range such as 9997-9999; it "
                f"is {words!r}."
            )
        return list(range(int(first), int(last or first) + 1))

    def start_listening_socket(self) -> socket.socket:
        """Return a socket that listens on one of the ports.

        Raises
        ------
        NetworkError
            If none of the ports is free.
        """
        elsewhere = os.environ.get(TFOS_SERVER_HOST)
        host = "" if elsewhere else self._host or util.get_ip_address()
        try:
            return mutual_tls.listen(host, self.get_server_ports())
        except OSError as error:
            raise NetworkError(f"the reservation server can't listen: {error}") from error

    def _serve(self, connection: mutual_tls.Connection) -> None:
        while True:
            try:
                message = self.receive(connection)
            except msgspec.DecodeError:
                return
            self._handle_message(connection, message)

    def _handle_message(self, sock: Any, msg: Any) -> None:
        kind = msg.get("type") if isinstance(msg, dict) else None
        match kind:
            case "REG" if isinstance(msg.get("data"), dict):
                self.reservations.add(msg["data"])
                self.send(sock, "OK")
            case "QUERY":
                self.send(sock, self.reservations.done())
            case "QINFO":
                self.send(sock, self.reservations.get())
            case "STOP":
                self.done = True
                self.send(sock, "OK")
            case "STATE":
                self.send(sock, self._state)
            case "FAIL":
                self.note(failure=str(msg.get("data", "")))
                self.send(sock, "OK")
            case _:
                self.send(sock, "ERR")


class Client(MessageSocket):
    """A connection to a `Server`.

    Parameters
    ----------
    server_addr : (str, int)
    key : bytes, optional
        Default: the value of ``TFOS_SERVER_KEY``, or the key of the server on this port, if it runs
        in this process or on this host as the same user.
    """

    def __init__(self, server_addr: tuple[str, int], key: bytes | None = None) -> None:
        self.server_addr = (str(server_addr[0]), int(server_addr[1]))
        self._key = strong_key(key, "key=") if key else _find_key(self.server_addr[1])
        self.sock = mutual_tls.knock(self.server_addr, self._key)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def register(self, reservation: dict[str, Any]) -> Any:
        """Register a node; returns ``OK``."""
        return self._request("REG", reservation)

    def get_reservations(self) -> list[dict[str, Any]]:
        """Return the nodes registered so far."""
        found: list[dict[str, Any]] = self._request("QINFO")
        return found

    def await_reservations(self) -> list[dict[str, Any]]:
        """Wait until all nodes have registered, and return them."""
        while not self._request("QUERY"):
            time.sleep(_POLL_SECONDS)
        return self.get_reservations()

    def request_stop(self) -> Any:
        """Ask the driver to end streaming."""
        return self._request("STOP")

    def get_state(self) -> dict[str, Any]:
        """Return the state set with `Server.note`."""
        found: dict[str, Any] = self._request("STATE")
        return found

    def report_failure(self, text: str) -> Any:
        """Report a node's failure."""
        return self._request("FAIL", text)

    def _request(self, msg_type: str, msg_data: Any = None) -> Any:
        message = {"type": msg_type}
        if msg_data:
            message["data"] = msg_data
        for attempt in range(MAX_RETRIES):
            try:
                self.send(self.sock, message)
                return self.receive(self.sock)
            except (EOFError, OSError):
                if attempt + 1 == MAX_RETRIES or msg_type == "REG":
                    raise
                self.sock.close()
                self.sock = mutual_tls.knock(self.server_addr, self._key)
        raise AssertionError("the last attempt returns or raises")


def _exactly(sock: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = sock.recv(count - len(found))
        if not more:
            raise EOFError("the other side closed the connection")
        found += more
    return found


def _key_prefix(port: int) -> str:
    return f"gridflow-tfos-{os.getuid()}-{port}-"


def _key_of_environment() -> bytes:
    given = os.environ.get(TFOS_SERVER_KEY, "").encode()
    return strong_key(given, TFOS_SERVER_KEY) if given else b""


def _find_key(port: int) -> bytes:
    known = _keys.get(port) or _key_of_environment()
    if known:
        return known
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_key_prefix(port)}*"):
        with contextlib.suppress(OSError):  # another user's, or just being deleted
            about = check_own(folder, [_KEY_FILE])
            with open_own(folder / _KEY_FILE) as file:
                found.append((about.st_mtime_ns, file.read()))
    if found:
        return max(found)[1]
    raise InvalidArgument(
        f"the key of the server on port {port} is unknown here. Set {TFOS_SERVER_KEY} to the same "
        "secret for the driver and for this process."
    )
