"""Queues and values that several processes share, behind a key.

The nodes of a cluster have such a thing in their own process (`gridflow.compat.tfos._queues`); this
one, a process of its own, is for programs that start it themselves. It is a new Python: the
original forks the process that it is started in, which can hang where that has threads, as
TensorFlow's and Spark's have.
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
#: Connections that haven't shown yet that they know the key.
_MOST_STRANGERS: Final = 64
#: Before the next try, when the system has no descriptors.
_PAUSE: Final = 0.1


class _Server(Server):
    """A manager's server that strangers can't end, nor fill: Python's own has a thread for each."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._strangers: dict[Connection, None] = {}
        self._lock = threading.Lock()

    def accepter(self) -> None:
        """Accept connections, whatever the system runs out of."""
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
            except RuntimeError:  # there are no threads to be had
                self._let_go(connection)
                connection.close()

    def accept_connection(self, c: Connection, name: str) -> None:
        """Serve one that has shown that it knows the key, until it leaves."""
        self._let_go(c)
        super().accept_connection(c, name)

    def handle_request(self, conn: Connection) -> None:
        """Serve one call, or a stranger until it is sent away."""
        try:
            with contextlib.suppress(SystemExit):  # the end of what `accept_connection` serves
                self._handle_request(conn)  # type: ignore[attr-defined]
        finally:
            self._let_go(conn)
            conn.close()

    def _make_room(self, most: int) -> int:
        """Hang up on the oldest strangers; the threads that serve them close the connections."""
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
    there.detach()  # it is the connection's


class TFManager(BaseManager):
    """A manager with ``get_queue(name)``, ``get(key)`` and ``set(key, value)``."""

    #: The process, where this is who has started it.
    server: subprocess.Popen[str] | None = None

    def get_server(self) -> Server:
        """Return the server that `serve` runs."""
        address, key = self._address, self._authkey  # type: ignore[attr-defined]
        return _Server(self._registry, address, key, "pickle")  # type: ignore[attr-defined]

    def shutdown(self) -> None:  # type: ignore[override]
        """End the process, if this is who has started it."""
        server, self.server = self.server, None
        if server is None:
            return
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()  # by which it ends, as when whoever has started it dies
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
        Who connects has to know it; nothing of anybody else is read.
    queues : iterable of str
    mode : {'local', 'remote'}, default 'local'
        Whether only processes of this host can connect.

    Raises
    ------
    GridflowError
        Its process ended at once; its own words are in the log.
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
    """Be the process of a manager, as long as whoever has started it lives."""
    asked = json.loads(sys.stdin.readline())
    qdict.update({name: JoinableQueue() for name in asked["queues"]})
    TFManager.register("get_queue", callable=_get_queue)
    TFManager.register("get", callable=_get)
    TFManager.register("set", callable=_set)
    address = (asked["host"], 0) if asked["host"] else None
    server = TFManager(address, authkey=bytes.fromhex(asked["key"])).get_server()
    print(json.dumps(server.address), flush=True)  # noqa: T201 (to who has started it)

    def wait_for_the_end() -> None:
        sys.stdin.read()
        while not hasattr(server, "stop_event"):  # it hasn't begun to serve
            time.sleep(0.01)
        server.stop_event.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    server.serve_forever()


def connect(address: Any, authkey: bytes) -> TFManager:
    """Connect to a manager that runs.

    Parameters
    ----------
    address : str or (str, int)
        Its ``address``.
    authkey : bytes
    """
    for name in ("get_queue", "get", "set"):
        TFManager.register(name)
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager
