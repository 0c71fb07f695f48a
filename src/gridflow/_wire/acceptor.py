"""One thread that accepts connections and runs the handshakes of unauthenticated peers.

Anyone who can reach a port can open connections to it. Unauthenticated connections share this one
thread, have a short deadline and are limited in number; above the limit, the source with the most
connections loses one. So strangers can't use up threads or descriptors, or keep others out.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import resource
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator

_log = logging.getLogger(__name__)

_MOST_VISITORS: Final = 256
_LEAST_VISITORS: Final = 8
#: The part of this process's descriptors that strangers may have.
_PART: Final = 8
#: Before the next try, when the system has no descriptors or no memory.
_PAUSE: Final = 0.1
_LOG_SECONDS: Final = 60.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


@dataclass
class _Visitor:
    """An unauthenticated connection.

    `source`: Where it comes from.
    `until`: Its deadline.
    `has_spoken`: Whether it has sent anything.
    """

    source: str
    until: float
    steps: Generator[int, None, None]
    has_spoken: bool = False


class Acceptor:
    """Accepts connections until it is closed. Bad peers and exhausted resources don't stop it.

    `listener`: A listening socket; `close` closes it.
    `meet`: ``meet(connection)`` is a generator that authenticates a non-blocking connection. It
        yields the events that it waits for (``select.POLLIN``). In the end it hands the connection
        over or closes it; it also closes it when the generator fails or is closed early.
    `name`: Name of the thread.
    `seconds`: Time limit for authentication.
    """

    def __init__(
        self,
        listener: socket.socket,
        meet: Callable[[socket.socket], Generator[int, None, None]],
        name: str,
        seconds: float,
    ) -> None:
        self._listener, self._meet, self._seconds = listener, meet, seconds
        self._most = _most_visitors()
        self._visitors: dict[int, _Visitor] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._rests_until: float | None = None
        self._refused, self._last_words = 0, -_LOG_SECONDS
        listener.setblocking(False)
        self._wake, self._waker = os.pipe()
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._tidy()
            raise

    def close(self) -> None:
        """Stop accepting, and close unauthenticated connections."""
        with self._lock:  # else the pipe may be closed by now, and its number another's
            if self._closed:
                return
            self._closed = True
            os.write(self._waker, b"x")
        if self._thread is not threading.current_thread():
            self._thread.join(self._seconds)

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._go_round()
                except Exception as error:  # noqa: BLE001 (whatever it is, others are to be heard)
                    self._warn("this host", error)
                    time.sleep(_PAUSE)
        finally:
            self._tidy()

    def _tidy(self) -> None:
        for visitor in self._visitors.values():
            visitor.steps.close()
        self._visitors.clear()
        self._listener.close()
        with self._lock:
            os.close(self._wake)
            os.close(self._waker)

    def _go_round(self) -> None:
        somebody_knocks = False
        for place, _ in self._poll.poll(self._patience()):
            if place == self._wake:
                return
            if place == self._listener.fileno():
                somebody_knocks = True
            else:
                self._go_on(place)
        now = time.monotonic()
        for place in [place for place, each in self._visitors.items() if each.until <= now]:
            self._send_away(place, "it took too long")
        if self._rests_until is not None and self._rests_until <= now:
            self._rests_until = None
            self._poll.register(self._listener, select.POLLIN)
        elif somebody_knocks:  # one at a time: who is in goes first
            self._accept()

    def _patience(self) -> float | None:
        """Return the milliseconds until there is something to do without an event."""
        moments = [each.until for each in self._visitors.values()]
        moments += [] if self._rests_until is None else [self._rests_until]
        return max(min(moments) - time.monotonic(), 0.0) * 1000 + 1 if moments else None

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED and not self._make_room("too many open files"):
                # Those who wait in the kernel's queue are still there afterwards.
                self._poll.unregister(self._listener)
                self._rests_until = time.monotonic() + _PAUSE
            return
        if len(self._visitors) >= self._most:
            self._make_room("too many connections at once")
        connection.setblocking(False)
        place = connection.fileno()
        until = time.monotonic() + self._seconds
        source = source_of(address[0]) if address else "this host"  # through a Unix socket
        self._visitors[place] = _Visitor(source, until, self._meet(connection))
        self._go_on(place, is_new=True)

    def _go_on(self, place: int, *, is_new: bool = False) -> None:
        visitor = self._visitors[place]
        visitor.has_spoken |= not is_new
        try:
            events = next(visitor.steps)
        except StopIteration:
            self._forget(place)
        except Exception as error:  # noqa: BLE001 (it is the visitor's)
            self._forget(place)
            self._warn(visitor.source, error)
        else:
            self._poll.register(place, events)

    def _forget(self, place: int) -> None:
        del self._visitors[place]
        with contextlib.suppress(KeyError):
            self._poll.unregister(place)

    def _send_away(self, place: int, why: str) -> None:
        visitor = self._visitors[place]
        self._forget(place)
        visitor.steps.close()
        self._warn(visitor.source, why)

    def _make_room(self, why: str) -> bool:
        """Close one connection of the source that has the most: a silent one, else the oldest."""
        if not self._visitors:
            return False
        counts = Counter(each.source for each in self._visitors.values())
        most = max(counts.values())
        self._send_away(
            min(
                (place for place, each in self._visitors.items() if counts[each.source] == most),
                key=lambda place: (self._visitors[place].has_spoken, self._visitors[place].until),
            ),
            why,
        )
        return True

    def _warn(self, source: str, why: object) -> None:
        """Log it at most once a minute, and in another thread, as logging may block."""
        self._refused += 1
        if time.monotonic() - self._last_words < _LOG_SECONDS:
            return
        self._last_words = time.monotonic()
        count, self._refused = self._refused, 0
        words = "connections refused since the last warning: %d; the last one from %s: %s"
        with contextlib.suppress(RuntimeError):  # no thread can be started
            threading.Thread(
                target=_log.warning, args=(words, count, source, str(why)), daemon=True
            ).start()


def _most_visitors() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_VISITORS
    return max(min(limit // _PART, _MOST_VISITORS), _LEAST_VISITORS)


def source_of(host: str) -> str:
    """Return the source that an address belongs to: itself, or in IPv6 its /64 network."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
