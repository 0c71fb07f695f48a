"""Outputs that may block: a terminal, a disk. The caller never waits for them.

The threads that answer heartbeats, and the job's loop, put output into a queue. The queue's own
thread writes it, however long that takes. What exceeds the queue's limit is dropped and counted.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_CHUNK_BYTES: Final = 1 << 16
#: The thread ends after the last entry; if that one is stuck, the thread is left behind.
_JOIN_SECONDS: Final = 1.0


class Outlet:
    """A queue with a limit, and the thread that empties it.

    `name`: The thread's.
    `limit`: In units of cost.
    `patience`: Seconds without progress after which it counts as stuck.
    `longest`: The longest that `close` waits, in seconds.
    `on_gap`: Called, from that thread and in the order of the entries, with a key and how many of
        its lines were dropped.
    """

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        patience: float,
        longest: float,
        on_gap: Callable[[Any, int], None],
    ) -> None:
        self.limit = limit
        self._name, self._patience, self._longest = name, patience, longest
        self._on_gap = on_gap
        self._changed = threading.Condition()
        self._entries: deque[tuple[int, Callable[[], None]]] = deque()
        self._cost = 0
        self._gaps: dict[Hashable, int] = {}
        self._moved_at = 0.0
        self._is_closed = self._has_failed = False
        self._thread: threading.Thread | None = None

    def put(
        self,
        key: Hashable,
        action: Callable[[], None],
        cost: int,
        lines: int,
        limit: int | None = None,
    ) -> None:
        """Queue an action for the queue's thread, or drop it if the queue is full.

        A dropped one leaves a gap. Later ones of its key are dropped as well until the thread has
        reached the gap: a few long gaps rather than many short ones.

        `key`: Actions with the same key stay in order.
        `lines`: How many lines are missing if it is dropped; with 0, nobody is told.
        `limit`: Instead of the queue's.
        """
        with self._changed:
            if self._is_closed:
                return
            if key in self._gaps:
                self._gaps[key] += lines
                return
            cost = min(cost, self.limit)  # one larger than the queue fits once the queue is empty
            if self._entries and self._cost + cost > (self.limit if limit is None else limit):
                if lines:
                    self._gaps[key] = lines
                    self._append(lambda: self._close_gap(key), 0)
                return
            self._append(action, cost)

    def _append(self, action: Callable[[], None], cost: int) -> None:
        if not self._entries:
            self._moved_at = time.monotonic()
        self._entries.append((cost, action))
        self._cost += cost
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def moved(self) -> None:
        """Note progress within an action."""
        self._moved_at = time.monotonic()

    @property
    def is_stuck(self) -> bool:
        """Whether something is queued, but nothing was written for a while."""
        return bool(self._entries) and time.monotonic() - self._moved_at > self._patience

    @property
    def has_room(self) -> bool:
        """Whether more may be queued: there is room, or waiting for room is pointless."""
        return self._cost < self.limit or self.is_stuck

    def wait_for_room(self) -> None:
        with self._changed:
            while not self.has_room:
                self._changed.wait(self._patience)

    def close(self) -> bool:
        """Stop taking actions, and wait for the queued ones; return whether all are done.

        A stuck queue isn't waited for. If it moves again, the rest is written while this process
        lives.
        """
        began = time.monotonic()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            while self._entries:
                give_up = min(max(self._moved_at, began) + self._patience, began + self._longest)
                left = give_up - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        return True

    def _close_gap(self, key: Hashable) -> None:
        with self._changed:
            lines = self._gaps.pop(key)
        self._on_gap(key, lines)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries or self._is_closed)
                if not self._entries:
                    return
                cost, action = self._entries[0]  # it counts until it is done
            try:
                action()
            except Exception:  # noqa: BLE001 (what comes after it goes out, whatever this was)
                self._tell_once()
            with self._changed:
                self._entries.popleft()
                self._cost -= cost
                self._moved_at = time.monotonic()
                self._changed.notify_all()

    def _tell_once(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))


#: So that two jobs of a driver don't write into each other's lines.
_writing = threading.Lock()


def _renew() -> None:
    """Replace the lock after a fork: its holder may not exist in this process."""
    global _writing  # noqa: PLW0603 (of this process)
    _writing = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def show(stream: Any, text: str, moved: Callable[[], None] = lambda: None) -> None:
    """Write a text to a standard stream at once; block while nobody reads there.

    Characters that the stream's encoding lacks are written as escapes.

    A file is written without Python's buffer, whose lock would be held meanwhile: an interpreter
    that finds it taken at exit aborts.

    `stream` (text file): Whatever ``sys.stdout`` or ``sys.stderr`` is.
    `moved`: Called after each part is written.
    Raises `OSError`, `ValueError`: It is closed, or its reader is gone or its disk full.
    """
    with _writing:
        descriptor = _descriptor(stream)
        if descriptor is None:
            _show_elsewhere(stream, text)
            return
        _await_reader(descriptor)
        stream.flush()  # what the program itself has printed before
        data = memoryview(text.encode(stream.encoding, "backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data[:_CHUNK_BYTES]) :]
            except BlockingIOError:  # another process that shares the terminal made it non-blocking
                _await_reader(descriptor)
            moved()


def _descriptor(stream: Any) -> int | None:
    """Return the descriptor of a real text file of Python; None for a lookalike."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    if type(stream).write is not io.TextIOWrapper.write or "write" in vars(stream):
        return None  # it does something else with what is written
    raw = getattr(stream.buffer, "raw", stream.buffer)
    return raw.fileno() if isinstance(raw, io.FileIO) else None


def _await_reader(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def _show_elsewhere(stream: Any, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        stream.write(_in_encoding(text, getattr(stream, "encoding", None)))
    if hasattr(stream, "flush"):
        stream.flush()


def _in_encoding(text: str, encoding: Any) -> str:
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except (LookupError, TypeError):
        return text.encode("ascii", "backslashreplace").decode("ascii")
