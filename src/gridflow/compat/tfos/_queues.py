"""The queues of a node: rows on their way in, results on their way out, in the node's own process.

Rows come and go in chunks. One lock is taken for each chunk, and none of them is copied. They stay
as they were sent until they are taken, and become objects as many at a time as are wanted: as such,
the numbers of a row take up to eight times as much memory, and who takes them finds them in the
processor's cache.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: What the end of a feed looks like in a queue, as the original has it.
END: Final = None


class QueuedRows(Protocol):
    """Rows that become objects when they are taken."""

    #: How many it is worth while to make at least.
    run: int

    def made(self, begin: int, end: int) -> list[Any]:
        """Return those from one place to another."""


class _Made:
    """Rows that are objects."""

    run = 1

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def made(self, begin: int, end: int) -> list[Any]:
        return self._rows[begin:end]


class _Chunk:
    """Rows of which some may have been taken."""

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
        """How many rows nobody has taken."""
        return self.count - self.at

    def take(self, most: int) -> list[Any]:
        """Return the next rows, up to a number."""
        stop = min(self.at + most, self.count)
        end = self._first + len(self._made)
        if stop > end:
            # Those who want few get what was made for several of them.
            rest = self._made[self.at - self._first :]
            more = self._rows.made(end, min(max(stop, end + self._rows.run), self.count))
            self._made, self._first = rest + more if rest else more, self.at
        part = self._made[self.at - self._first : stop - self._first]
        self.at = stop
        if stop == self._first + len(self._made):
            self._made, self._first = [], stop  # who has taken them may let them go
        return part


class RowQueue:
    """A queue of rows and of what stands between them.

    It has the methods of `multiprocessing.JoinableQueue` that programs use, and `take`, which gives
    many rows at a time.
    """

    def __init__(self) -> None:
        self._entries: deque[Any] = deque()
        self._changed = threading.Condition()
        self._closed = False

    # For those who put ---------------------------------------------------------------------------

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append a row, a marker or the end."""
        del block, timeout  # there is always room: who feeds is told how much was taken
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
            Called once all of them were taken, or thrown away.
        owner : object, optional
            By which `discard` knows them.
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
        """Append rows that are made when they are taken.

        Parameters
        ----------
        rows : QueuedRows
        span : range
            The places of those that are to be appended.
        on_taken, owner
            As in `put_rows`.
        """
        self._append(_Chunk(rows, span, on_taken, owner))

    def join(self) -> None:
        """Wait until everything was taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._entries)

    # For those who take --------------------------------------------------------------------------

    def take(self, most: int, timeout: float | None = None) -> tuple[list[Any], bool, Any]:
        """Wait for rows, up to a number, or for what stands next between them.

        Returns
        -------
        (rows, is_mark, mark)
            Either rows, or none and a mark: a marker, or `END`.

        Raises
        ------
        queue.Empty
            Nothing came in time.
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
            There is none, or none came in time.
        """
        rows, is_mark, mark = self.take(1, timeout if block else 0.0)
        return mark if is_mark else rows[0]

    def task_done(self) -> None:
        """Do nothing: what was taken counts as done."""

    def empty(self) -> bool:
        """Return whether there is nothing to take."""
        with self._changed:
            return not self._entries

    def qsize(self) -> int:
        """Return how many rows and marks there are."""
        with self._changed:
            return sum(entry.left if isinstance(entry, _Chunk) else 1 for entry in self._entries)

    def discard(self, owner: object) -> int:
        """Throw away the rows of an owner that nobody has taken; return how many."""
        with self._changed:
            mine = [e for e in self._entries if isinstance(e, _Chunk) and e.owner is owner]
            for entry in mine:
                self._entries.remove(entry)
            self._changed.notify_all()
        return sum(entry.left for entry in mine)

    def close(self) -> None:
        """Throw everything away, now and from now on; those who wait find the end."""
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
        """Wait for an entry, with the lock."""
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
    """A text that shows its quotes, as a proxy of the original's manager does.

    Programs compare ``str(mgr.get("state"))`` with ``"'running'"``.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return repr(str.__str__(self))


class NodeQueues:
    """What programs know as ``ctx.mgr``, without a process of its own.

    Parameters
    ----------
    names : sequence of str
        Of the queues.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._queues = {name: RowQueue() for name in names}
        self._values: dict[str, Any] = {}

    def get_queue(self, name: str) -> RowQueue | None:
        """Return a queue; None if there is none of that name."""
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
        """Put the end into every queue that a program may read."""
        for name, each in self._queues.items():
            if name != "error":
                each.put(END)
