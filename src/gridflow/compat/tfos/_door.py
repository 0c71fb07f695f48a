"""Connections between processes that know the same key.

Both sides prove that they have it (HMAC with a challenge, `multiprocessing.connection`) before
anything else of the other is read, and a stranger gets no thread for longer than a few seconds.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
#: For a visitor to answer, and for a connection to come about.
_SECONDS: Final = 10.0
_NOT_ONE_OF_US: Final = (AuthenticationError, EOFError, OSError, AssertionError)


class Door:
    """A listening socket, with a thread for each connection that knows the key.

    Parameters
    ----------
    listener : socket
        Closed by `close`.
    key : bytes
    serve : callable
        Called with each connection, which is closed after it.
    """

    def __init__(
        self, listener: socket.socket, key: bytes, serve: Callable[[Connection], None]
    ) -> None:
        self._listener, self._key, self._serve = listener, key, serve
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, name="gridflow-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more, and send those away who are."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            inside = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for connection in inside:
            _hang_up(connection)
        if self._thread is not threading.current_thread():
            self._thread.join(_SECONDS)

    def _accept(self) -> None:
        while not self._closed:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._admit, args=(visitor,), name="gridflow-visitor", daemon=True
            ).start()

    def _admit(self, visitor: socket.socket) -> None:
        visitor.setblocking(True)
        connection = Connection(visitor.detach())
        timer = threading.Timer(_SECONDS, _hang_up, (connection,))
        timer.daemon, timer.name = True, "gridflow-patience"
        timer.start()
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except _NOT_ONE_OF_US as error:
            _log.warning("a stranger was refused: %s", error or type(error).__name__)
            timer.cancel()
            connection.close()
            return
        timer.cancel()
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._open.add(connection)
        try:
            self._serve(connection)
        except (EOFError, OSError):
            pass  # it has left
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()


def knock(address: tuple[str, int], key: bytes, seconds: float = _SECONDS) -> Connection:
    """Return a connection to a door.

    Raises
    ------
    OSError
        Nobody is there.
    AuthenticationError
        One of the two sides has another key.
    """
    plain = socket.create_connection((address[0], address[1]), seconds)
    plain.settimeout(None)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = Connection(plain.detach())
    try:
        if not connection.poll(seconds):
            raise TimeoutError(f"{address[0]}:{address[1]} doesn't answer.")
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
    except EOFError as error:
        connection.close()
        raise AuthenticationError("the other side has hung up") from error
    except BaseException:
        connection.close()
        raise
    return connection


def listen(host: str, ports: list[int] | range | tuple[int, ...] = (0,)) -> socket.socket:
    """Return a socket that listens on the first port of several that is free.

    Raises
    ------
    OSError
        None is.
    """
    failure: OSError | None = None
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            failure = error
        else:
            return listener
    raise OSError(f"none of the ports {list(ports)} of {host or 'this host'} is free: {failure}")


def _hang_up(connection: Connection) -> None:
    """End a connection that another thread may be reading."""
    with contextlib.suppress(OSError):
        there = socket.socket(fileno=connection.fileno())
        try:
            there.shutdown(socket.SHUT_RDWR)
        finally:
            there.detach()
