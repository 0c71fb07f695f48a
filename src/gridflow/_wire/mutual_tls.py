"""Encrypted connections between processes that share a key.

They use mutual TLS: both sides present a certificate of an authority that is derived from the key.
Whoever has the key can act as that authority. A stranger gets no further than the handshake, reads
nothing on the wire and gets no thread. So only the key has to be distributed.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import socket
import ssl
import struct
import threading
import time
from functools import lru_cache
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any, Final

from gridflow._wire import identity
from gridflow._wire.acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_log = logging.getLogger(__name__)
#: Time limit for a handshake, and for connecting.
_SECONDS: Final = 10.0
#: Before the next attempt to connect; None ends the attempts.
_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, None)
_LEAST_SECONDS: Final = 0.1
_LENGTH: Final = struct.Struct(">Q")
_PIECE: Final = 64 << 10
_MOST_BYTES: Final = 1 << 40
#: A host that vanished is noticed after two minutes: by keepalive, while nothing is on its way …
_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
#: … and else by this limit, in seconds. The kernel would go on for 15 minutes and more. Its own
#: limit, TCP_USER_TIMEOUT, also closes connections to a peer that answers but doesn't read:
#: `tcp_probe_timer` in net/ipv4/tcp_timer.c.
_SILENCE: Final = 120.0
#: So often a waiting thread looks.
_LOOK_SECONDS: Final = 5.0
#: The beginning of Linux's ``struct tcp_info``: retransmissions and probes without an answer, and
#: the milliseconds since the last acknowledgement.
_TCP_INFO: Final = struct.Struct("=2xBB52xI")
#: Instead of a message's length: its sender gives up, and says why.
_FAREWELL: Final = 2**64 - 1
_MOST_FAREWELL: Final = 1 << 10


class Late(TimeoutError):
    """The peer neither sent nor took anything within `Connection.patience` seconds."""


class Farewell(ConnectionError):
    """The peer has given up.

    `content`: What it said.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__("the other side has given up.")
        self.content = content


class Connection:
    """Messages over TLS. One thread may receive while others send.

    OpenSSL lets one thread at a time use a connection, and a waiting thread would keep the others
    out. So the socket is non-blocking, and threads wait outside the lock.

    `there`: A non-blocking socket after its handshake.
    `patience`: Time limit in seconds for each wait for the peer to send or take something; then
        sending and receiving raise `Late`. None (the default): no limit, while its host answers.
    """

    def __init__(self, there: ssl.SSLSocket) -> None:
        self._there = there
        self.patience: float | None = None
        self._inside, self._sending = threading.Lock(), threading.Lock()
        self._buffer = bytearray()
        self._at_end = False

    def send_bytes(self, message: bytes | bytearray | memoryview) -> None:
        """Send a message.

        Raises `OSError`: The other side has closed the connection, or is `Late`.
        """
        with self._sending:
            # A small message goes in one piece; a large one isn't copied for its length.
            parts: list[Any] = [_LENGTH.pack(len(message)), memoryview(message)]
            if len(message) < _PIECE:
                parts = [b"".join(parts)]
            for part in parts:
                self._send_all(memoryview(part))

    def say_farewell(self, content: bytes, seconds: float) -> None:
        """Make the peer's next attempt to receive raise `Farewell`, if that can be sent in time."""
        if not self._sending.acquire(timeout=seconds):
            return  # another thread is sending, and the peer takes nothing
        try:
            self.patience = seconds
            words = _LENGTH.pack(_FAREWELL) + _LENGTH.pack(len(content)) + content
            with contextlib.suppress(OSError):  # it has left, too
                self._send_all(memoryview(words))
        finally:
            self._sending.release()

    def recv_bytes(self, most: int = _MOST_BYTES) -> bytes:
        """Wait for a message.

        Raises `EOFError`: The other side has closed the connection.
        Raises `OSError`: The message is too large, or the connection broke: also `Late` and
            `Farewell`.
        """
        length = self._next_length()
        if length > most:
            raise OSError(f"message too large: {length:,} bytes (limit {most:,}).")
        return bytes(self._receive(length))

    def receive_into(self, target: memoryview) -> None:
        """Wait for a message of just this length, and write it there.

        Raises `EOFError`: The other side has hung up.
        Raises `OSError`: The message has another length, or the connection has broken: also `Late`
            and `Farewell`.
        """
        length = self._next_length()
        if length != len(target):
            raise OSError(f"a message of {length:,} bytes came instead of {len(target):,}.")
        self._fill(target)

    def _next_length(self) -> int:
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size))
        if length == _FAREWELL:
            raise Farewell(self.recv_bytes(_MOST_FAREWELL))
        return int(length)

    def poll(self, seconds: float | None = 0.0) -> bool:
        """Return whether data, or the end of the connection, arrives within some seconds."""
        give_up = None if seconds is None else time.monotonic() + seconds
        while not self._buffer and not self._at_end:
            try:
                with self._inside:
                    piece = self._there.recv(_PIECE)
            except ssl.SSLWantReadError:
                left = None if give_up is None else give_up - time.monotonic()
                if (left is not None and left < 0) or not self._wait(select.POLLIN, left):
                    return False
                continue
            self._buffer += piece
            self._at_end = not piece
        return True

    def hang_up(self) -> None:
        """Shut the connection down; a thread that is reading it then closes it."""
        with contextlib.suppress(OSError):
            # Not SSLSocket's own, behind which the socket would be read as it is.
            socket.socket.shutdown(self._there, socket.SHUT_RDWR)

    def close(self) -> None:
        self._there.close()

    def _send_all(self, rest: memoryview) -> None:
        while rest:
            try:
                with self._inside:
                    sent = self._there.send(rest)
            except ssl.SSLWantWriteError:
                self._be_patient(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._be_patient(select.POLLIN)
            else:
                rest = rest[sent:]

    def _receive(self, count: int) -> bytearray:
        found = bytearray(count)
        self._fill(memoryview(found))
        return found

    def _fill(self, target: memoryview) -> None:
        have = min(len(self._buffer), len(target))
        target[:have] = self._buffer[:have]
        del self._buffer[:have]
        while have < len(target):
            if self._at_end:
                self._check_answers()  # SSLSocket tells a time-out of the kernel's as the end
                raise EOFError("the other side has closed the connection")
            try:
                with self._inside:
                    more = self._there.recv_into(target[have:])
            except ssl.SSLWantReadError:
                self._be_patient(select.POLLIN)
                continue
            self._at_end = not more
            have += more

    def _be_patient(self, what: int) -> None:
        if not self._wait(what, self.patience):
            raise Late(f"the other side did nothing for {self.patience:g} seconds.")

    def _wait(self, what: int, seconds: float | None) -> bool:
        """Return whether the socket is ready within some seconds."""
        poll = select.poll()
        poll.register(self._there.fileno(), what)
        give_up = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            left = give_up - time.monotonic()
            if poll.poll(min(max(left, 0.0), _LOOK_SECONDS) * 1000):
                return True
            if left <= _LOOK_SECONDS:
                return False
            self._check_answers()

    def _check_answers(self) -> None:
        """Raise an error if the peer's host hasn't answered for long."""
        if not hasattr(socket, "TCP_INFO"):
            return
        info = self._there.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        retransmissions, probes, since = _TCP_INFO.unpack(info)
        # A single probe may be on its way: to a peer that doesn't read, two minutes lie between.
        if (retransmissions or probes > 1) and since >= _SILENCE * 1000:
            words = f"the other side's host hasn't answered for {since // 1000} seconds"
            raise OSError(errno.ETIMEDOUT, words)


class Door:
    """A listening socket, with a thread for each authenticated connection.

    Connections that haven't proved that they know the key get no thread; see `Acceptor`.

    `listener`: Closed by `close`.
    `serve`: Called with each connection, which is closed afterwards.
    """

    def __init__(
        self, listener: socket.socket, key: bytes, serve: Callable[[Connection], None]
    ) -> None:
        self._serve = serve
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._closed = False
        self._context = _context(key, as_server=True)
        self._acceptor = Acceptor(listener, self._meet, "gridflow-door", _SECONDS)

    def close(self) -> None:
        """Stop accepting, and close all connections."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            inside = list(self._open)
        for connection in inside:
            connection.hang_up()
        self._acceptor.close()

    def stop_listening(self) -> None:
        """Let nobody else in; those who are inside stay."""
        self._acceptor.close()

    def _meet(self, visitor: socket.socket) -> Generator[int, None, None]:
        """Shake hands with a visitor, and give it a thread."""
        there = _wrapped(visitor, self._context, as_server=True)
        try:
            while True:
                try:
                    there.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    yield select.POLLIN
                except ssl.SSLWantWriteError:
                    yield select.POLLOUT
            threading.Thread(
                target=self._admit, args=(Connection(there),), name="gridflow-visitor", daemon=True
            ).start()
        except BaseException:  # perhaps no thread can be started
            there.close()
            raise

    def _admit(self, connection: Connection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
                return
            self._open.add(connection)
        try:
            self._serve(connection)
        except (EOFError, OSError):
            pass  # it has left
        except Exception:  # noqa: BLE001 (whatever it is, it is this connection's alone)
            _log.exception("failed to answer a peer's message; closing its connection.")
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()


def knock(address: tuple[str, int], key: bytes, seconds: float = _SECONDS) -> Connection:
    """Connect to a `Door`.

    A door that is flooded by strangers may close other connections, too, so this retries.

    Raises `OSError`: Nothing listens there.
    Raises `AuthenticationError`: The two sides have different keys.
    """
    where = f"{address[0]}:{address[1]}"
    give_up = time.monotonic() + seconds
    for pause in _PAUSES:
        left = max(give_up - time.monotonic(), _LEAST_SECONDS)
        plain = socket.create_connection((address[0], address[1]), left)
        try:
            return _shake_hands(plain, key, max(give_up - time.monotonic(), _LEAST_SECONDS))
        except (ssl.SSLEOFError, ConnectionError) as error:
            if pause is None or time.monotonic() + pause > give_up:
                words = (
                    f"{where} closed the connection before both sides had proved that they know "
                    "the key."
                )
                raise ConnectionResetError(errno.ECONNRESET, words) from error
            time.sleep(pause)
        except ssl.SSLError as error:
            raise AuthenticationError(f"the other side has a different key: {error}") from error
        except TimeoutError:
            raise TimeoutError(f"{where} doesn't answer.") from None
    raise AssertionError("the last attempt returns or raises")


def _shake_hands(plain: socket.socket, key: bytes, seconds: float) -> Connection:
    """Return a socket's connection once both sides have proved that they know the key."""
    there = _wrapped(plain, _context(key, as_server=False), as_server=False)
    there.settimeout(seconds)
    try:
        there.do_handshake()
    except BaseException:
        there.close()
        raise
    there.setblocking(False)
    return Connection(there)


def _wrapped(plain: socket.socket, context: ssl.SSLContext, *, as_server: bool) -> ssl.SSLSocket:
    """Return a socket before its handshake, with keepalive on."""
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _ALIVE.items():
            if hasattr(socket, name):
                plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return context.wrap_socket(plain, server_side=as_server, do_handshake_on_connect=False)
    except BaseException:
        plain.close()
        raise


@lru_cache(maxsize=16)
def _context(key: bytes, *, as_server: bool) -> ssl.SSLContext:
    """Return the TLS context with which a side proves that it knows the key."""
    mine = identity.identity_of(key)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if as_server else ssl.PROTOCOL_TLS_CLIENT)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.check_hostname = False  # nodes have no names of their own, the key is what counts
    found.verify_mode = ssl.CERT_REQUIRED
    found.load_verify_locations(cadata=mine.authority.decode())
    if as_server:
        found.num_tickets = 0
    # OpenSSL needs a file. This one is in memory: nothing is left, however this process ends.
    with os.fdopen(os.memfd_create("gridflow-identity"), "wb") as file:
        file.write(mine.certificate + mine.key)
        file.flush()
        found.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return found


def listen(host: str, ports: list[int] | range | tuple[int, ...] = (0,)) -> socket.socket:
    """Return a socket that listens on the first free port of several.

    Raises `OSError`: No port is free.
    """
    # The words and not the error, whose traceback would hold this frame, and with it the frames of
    # all callers and their sockets, until the garbage collector runs.
    failure = ""
    for port in ports:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            failure = str(error)
        else:
            return listener
    raise OSError(f"no free port on {host or 'this host'} among {list(ports)}: {failure}")
