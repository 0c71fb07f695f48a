"""A node's queues in its own process: incoming rows and outgoing results.

Rows are queued in chunks, with one lock operation for each chunk and no copies. They stay in the
form in which they were sent, and become Python objects only when they are read, a few at a time.
This saves memory, because the numbers of a row take up to eight times as much as objects, and keeps
the objects in the processor's cache until they are used.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: Marks the end of a feed in a queue, as in the original.
END: Final = None


class QueuedRows(Protocol):
    """Rows that become Python objects when they are read."""

    #: The smallest number of rows worth converting at a time.
    run: int

    def made(self, begin: int, end: int) -> list[Any]:
        """Return the rows from `begin` up to `end`."""


class _Made:
    """Rows that are Python objects already."""

    run = 1

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def made(self, begin: int, end: int) -> list[Any]:
        return self._rows[begin:end]


class _Chunk:
    """A chunk of rows, some of which may have been read."""

    __slots__ = ("_first", "_made", "_rows", "at", "count", "on_taken", "owner")

    def __init__(
        self,
        rows: QueuedRows,
        span: range,
        on_taken: Callable[[], None] | None = None,
        owner: object = None,
    ) -> None:
        self._rows, self.at, self.count = rows, span.start, span.stop
        self.on_taken, self.owner = on_taken, owner
        self._made: list[Any] = []
        self._first = self.at

    @property
    def left(self) -> int:
        """Number of unread rows."""
        return self.count - self.at

    def take(self, most: int) -> list[Any]:
        """Return the next rows, at most `most`."""
        stop = min(self.at + most, self.count)
        end = self._first + len(self._made)
        if stop > end:
            # Small reads share the rows of one conversion.
            rest = self._made[self.at - self._first :]
            more = self._rows.made(end, min(max(stop, end + self._rows.run), self.count))
            self._made, self._first = rest + more if rest else more, self.at
        part = self._made[self.at - self._first : stop - self._first]
        self.at = stop
        if stop == self._first + len(self._made):
            self._made, self._first = [], stop  # so that the reader can free them
        return part


class RowQueue:
    """A queue of rows and markers.

    It has the methods of `multiprocessing.JoinableQueue` that programs use, and `take`, which
    returns many rows at a time.
    """

    def __init__(self) -> None:
        self._entries: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    # Writing -------------------------------------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append a row, a marker or the end."""
        del block, timeout  # there is always room: feeders wait for acknowledgements
        with self._changed:
            if not self._closed:
                self._entries.append(item if _is_mark(item) else _Chunk(_Made([item]), range(1)))
                self._changed.notify_all()

    def put_rows(
        self,
        rows: Iterable[Any],
        on_taken: Callable[[], None] | None = None,
        owner: object = None,
    ) -> None:
        """Append rows.

        Parameters
        ----------
        rows : iterable
        on_taken : callable, optional
            Called once all of them have been read or discarded.
        owner : object, optional
            Identifies them for `discard`.
        """
        rows = rows if isinstance(rows, list) else list(rows)
        self._append(_Chunk(_Made(rows), range(len(rows)), on_taken, owner))

    def put_later(
        self,
        rows: QueuedRows,
        span: range,
        on_taken: Callable[[], None] | None = None,
        owner: object = None,
    ) -> None:
        """Append rows that become objects when they are read.

        Parameters
        ----------
        rows : QueuedRows
        span : range
            Indices of the rows to append.
        on_taken, owner
            See `put_rows`.
        """
        self._append(_Chunk(rows, span, on_taken, owner))

    def join(self) -> None:
        """Wait until everything has been read."""
        with self._changed:
            self._changed.wait_for(lambda: not self._entries)

    # Reading -------------------------------------------------------------------------------------

    def take(self, most: int, timeout: float | None = None) -> tuple[list[Any], bool, Any]:
        """Wait for up to `most` rows, or for a marker.

        Returns
        -------
        (rows, is_mark, mark)
            Either rows, or no rows and a marker or `END`.

        Raises
        ------
        queue.Empty
            If nothing arrived in time.
        """
        rows: list[Any] = []
        taken: list[Callable[[], None]] = []
        with self._changed:
            self._await(timeout)
            if not self._entries:
                return [], True, END  # closed
            while self._entries and len(rows) < most:
                entry = self._entries[0]
                if not isinstance(entry, _Chunk):
                    if rows:
                        break
                    self._entries.popleft()
                    self._changed.notify_all()
                    return [], True, entry
                part = entry.take(most - len(rows))
                rows = part if not rows else rows + part
                if not entry.left:
                    self._entries.popleft()
                    if entry.on_taken is not None:
                        taken.append(entry.on_taken)
            self._changed.notify_all()
        for call in taken:
            call()
        return rows, False, None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next row, marker or end.

        Raises
        ------
        queue.Empty
            If there is none, or none arrived in time.
        """
        rows, is_mark, mark = self.take(1, timeout if block else 0.0)
        return mark if is_mark else rows[0]

    def task_done(self) -> None:
        """Do nothing: items count as done once they are read."""

    def empty(self) -> bool:
        """Return whether the queue is empty."""
        with self._changed:
            return not self._entries

    def qsize(self) -> int:
        """Return the number of rows and markers."""
        with self._changed:
            return sum(entry.left if isinstance(entry, _Chunk) else 1 for entry in self._entries)

    def discard(self, owner: object) -> int:
        """Discard an owner's unread rows; return their number."""
        with self._changed:
            mine = [e for e in self._entries if isinstance(e, _Chunk) and e.owner is owner]
            for entry in mine:
                self._entries.remove(entry)
            self._changed.notify_all()
        return sum(entry.left for entry in mine)

    def close(self) -> None:
        """Discard all current and future items; readers get `END`."""
        with self._changed:
            self._closed = True
            entries, self._entries = self._entries, deque()
            self._changed.notify_all()
        for entry in entries:
            if isinstance(entry, _Chunk) and entry.on_taken is not None:
                entry.on_taken()

    def _append(self, chunk: _Chunk) -> None:
        with self._changed:
            if chunk.left and not self._closed:
                self._entries.append(chunk)
                self._changed.notify_all()
                return
        if chunk.on_taken is not None:
            chunk.on_taken()

    def _await(self, timeout: float | None) -> None:
        """Wait for an entry; the caller holds the lock."""
        give_up = None if timeout is None else time.monotonic() + timeout
        while not self._entries and not self._closed:
            left = None if give_up is None else give_up - time.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            self._changed.wait(left)


def _is_mark(item: Any) -> bool:
    from gridflow.compat.tfos.marker import Marker

    return item is END or isinstance(item, Marker)


class _Shown(str):
    """A string whose ``str()`` includes quotes, as with the original manager's proxies.

    Programs compare ``str(mgr.get("state"))`` with ``"'running'"``.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return repr(str.__str__(self))


class NodeQueues:
    """The ``ctx.mgr`` of programs, without a separate process.

    Parameters
    ----------
    names : sequence of str
        Names of the queues.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._queues = {name: RowQueue() for name in names}
        self._values: dict[str, Any] = {}

    def get_queue(self, name: str) -> RowQueue | None:
        """Return the queue of that name, or None."""
        return self._queues.get(name)

    def get(self, key: str) -> Any:
        """Return a value."""
        value = self._values[key]
        return _Shown(value) if type(value) is str else value

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._values[key] = value

    @property
    def is_terminating(self) -> bool:
        """Whether the program wants no more rows."""
        return self._values.get("state") in {"terminating", "stopped"}

    def end_feeds(self) -> None:
        """Put `END` into every queue that a program may read."""
        for name, each in self._queues.items():
            if name != "error":
                each.put(END)
