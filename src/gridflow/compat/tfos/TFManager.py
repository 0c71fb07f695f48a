"""Queues and values shared between processes, protected by a key.

The nodes of a cluster keep their queues in their own process (`gridflow.compat.tfos._queues`). This
manager runs as a separate process, for programs that start one themselves. It starts a new Python
interpreter. The original forks instead, which can hang in a process with threads, such as
TensorFlow's and Spark's.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import JoinableQueue
from multiprocessing.managers import BaseManager, Server
from typing import TYPE_CHECKING, Any, Final

from gridflow.compat.tfos import util
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

_SERVE: Final = "from gridflow.compat.tfos import TFManager; TFManager.serve()"
_END_SECONDS: Final = 5.0
#: Limit on connections that haven't authenticated yet.
_MOST_STRANGERS: Final = 64
#: Seconds before the next attempt to accept when the system is out of file descriptors.
_PAUSE: Final = 0.1


class _Server(Server):
    """A manager's server that unauthenticated clients can neither stop nor exhaust.

    Python's own server starts a thread for each connection, without a limit.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._strangers: dict[Connection, None] = {}
        self._lock = threading.Lock()

    def accepter(self) -> None:
        """Accept connections, even when the system is short of descriptors or threads."""
        while True:
            try:
                connection = self.listener.accept()  # type: ignore[attr-defined]
            except OSError:
                if not self._make_room(0):
                    time.sleep(_PAUSE)
                continue
            self._make_room(_MOST_STRANGERS - 1)
            with self._lock:
                self._strangers[connection] = None
            try:
                threading.Thread(
                    target=self.handle_request, args=(connection,), daemon=True
                ).start()
            except RuntimeError:  # can't start a new thread
                self._let_go(connection)
                connection.close()

    def accept_connection(self, c: Connection, name: str) -> None:
        """Serve an authenticated connection until it closes."""
        self._let_go(c)
        super().accept_connection(c, name)

    def handle_request(self, conn: Connection) -> None:
        """Authenticate a connection and serve its request."""
        try:
            with contextlib.suppress(SystemExit):  # how serving a connection ends
                self._handle_request(conn)  # type: ignore[attr-defined]
        finally:
            self._let_go(conn)
            conn.close()

    def _make_room(self, most: int) -> int:
        """Shut down the oldest unauthenticated connections; their threads then close them."""
        with self._lock:
            leaving = list(self._strangers)[: max(len(self._strangers) - most, 0)]
            for connection in leaving:
                del self._strangers[connection]
                _hang_up(connection)
        return len(leaving)

    def _let_go(self, connection: Connection) -> None:
        with self._lock:
            self._strangers.pop(connection, None)


def _hang_up(connection: Connection) -> None:
    there = socket.socket(fileno=connection.fileno())
    with contextlib.suppress(OSError):
        there.shutdown(socket.SHUT_RDWR)
    there.detach()  # the connection owns the descriptor


class TFManager(BaseManager):
    """A manager with ``get_queue(name)``, ``get(key)`` and ``set(key, value)``."""

    #: The manager's process, if it was started from here.
    server: subprocess.Popen[str] | None = None

    def get_server(self) -> Server:
        """Return the server that `serve` runs."""
        address, key = self._address, self._authkey  # type: ignore[attr-defined]
        return _Server(self._registry, address, key, "pickle")  # type: ignore[attr-defined]

    def shutdown(self) -> None:  # type: ignore[override]
        """Stop the manager's process, if it was started from here."""
        server, self.server = self.server, None
        if server is None:
            return
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()  # the process ends at EOF, also when its parent dies
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()


mgr: TFManager | None = None
qdict: dict[str, Any] = {}
kdict: dict[str, Any] = {}


def _get_queue(name: str) -> Any:
    return qdict.get(name)


def _get(key: str) -> Any:
    return kdict[key]


def _set(key: str, value: Any) -> None:
    kdict[key] = value


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Start a manager.

    Parameters
    ----------
    authkey : bytes
        Clients must present this key; nothing is read from others.
    queues : iterable of str
        Names of the queues.
    mode : {'local', 'remote'}, default 'local'
        With ``'local'``, only processes on this host can connect.

    Raises
    ------
    GridflowError
        If the manager's process ended at once; its output is in the log.
    """
    global mgr  # noqa: PLW0603 (as the original has it)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    host = util.get_ip_address() if mode == "remote" else None
    asked = {"key": authkey.hex(), "queues": list(queues), "host": host}
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    line = server.stdout.readline()
    if not line:
        server.stdin.close()
        server.stdout.close()
        raise GridflowError(f"the manager's process ended with exit code {server.wait()}.")
    found = json.loads(line)
    mgr = connect(tuple(found) if isinstance(found, list) else found, authkey)
    mgr.server = server
    return mgr


def serve() -> None:
    """Run a manager in this process for as long as its parent lives."""
    asked = json.loads(sys.stdin.readline())
    qdict.update({name: JoinableQueue() for name in asked["queues"]})
    TFManager.register("get_queue", callable=_get_queue)
    TFManager.register("get", callable=_get)
    TFManager.register("set", callable=_set)
    address = (asked["host"], 0) if asked["host"] else None
    server = TFManager(address, authkey=bytes.fromhex(asked["key"])).get_server()
    print(json.dumps(server.address), flush=True)  # noqa: T201 (read by the parent)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        while not hasattr(server, "stop_event"):  # it isn't serving yet
            time.sleep(0.01)
        server.stop_event.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    server.serve_forever()


def connect(address: Any, authkey: bytes) -> TFManager:
    """Connect to a running manager.

    Parameters
    ----------
    address : str or (str, int)
        The manager's ``address``.
    authkey : bytes
    """
    for name in ("get_queue", "get", "set"):
        TFManager.register(name)
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager
