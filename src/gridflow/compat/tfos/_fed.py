"""The side of a node that is fed: rows go into its queues, results come out of them.

See `gridflow.compat.tfos._feeding` for the other side, and for what they say to each other.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from gridflow._feed.push.exactly_once import Partition, Partitions, Superseded
from gridflow._wire import psk_tls
from gridflow.compat.tfos import _frames, _memory, marker
from gridflow.compat.tfos._chunks import COLUMNS, PLACE, ROWS, SHARED, SPAN, pickled
from gridflow.compat.tfos._feeding import (
    BUSY,
    DONE,
    EXPLAIN_SECONDS,
    FAILED,
    HELLO,
    LATER,
    LOOK_SECONDS,
    PARTITION,
    PROGRESS,
    TAKEN,
    UNWANTED,
    WELCOME,
)
from gridflow.errors import DataError, GridflowError

if TYPE_CHECKING:
    from gridflow._wire.psk_tls import Connection
    from gridflow.compat.tfos._queues import NodeQueues, RowQueue


class FeedServer:
    """The node's side.

    Parameters
    ----------
    queues : NodeQueues
    host : str
        The address to bind.
    key : bytes
    """

    def __init__(self, queues: NodeQueues, host: str, key: bytes) -> None:
        self._queues = queues
        self._lock = threading.Lock()
        self._visits: list[_Visit] = []
        self._partitions = Partitions(_Partition)
        self._failure = ""
        self._ended = False
        listener = psk_tls.listen(host)
        self.port = int(listener.getsockname()[1])
        self._door = psk_tls.Door(listener, key, self._serve)

    def fail(self, text: str) -> None:
        """Tell all feeders, those to come included, why there will be no answer."""
        self._failure = text
        self._end()

    def end(self) -> None:
        """Want no more rows: the program has returned."""
        self._ended = True
        self._end()

    def close(self) -> None:
        """Listen no more."""
        self._door.close()

    def _end(self) -> None:
        for name in ("input", "output"):
            found = self._queues.get_queue(name)
            if found is not None:
                found.close()

    def _serve(self, connection: Connection) -> None:
        while True:
            hello = connection.recv_bytes()
            if not hello.startswith(HELLO):
                return
            wanted = msgspec.msgpack.decode(hello[1:])
            rows = self._queues.get_queue(wanted["queue"])
            missing = f"this node has no queue {wanted['queue']!r}." if rows is None else ""
            if self._failure or rows is None:
                connection.send_bytes(FAILED + (self._failure or missing).encode())
                return
            visit = self._admit(connection, wanted, rows)
            if visit is None:
                continue
            try:
                visit.answer(self._queues.get_queue("output")) if wanted[
                    "answers"
                ] else visit.take()
            finally:
                with self._lock:
                    self._visits.remove(visit)
                    visit.leave()

    def _admit(
        self, connection: Connection, wanted: dict[str, Any], rows: RowQueue
    ) -> _Visit | None:
        """Tell a feeder whether it may begin; return its visit if so."""
        # Who doesn't say which attempt it is asks as if there were no others.
        key = (wanted["feed"], wanted["partition"]) if "feed" in wanted else None
        with self._lock:
            partition = _Partition() if key is None else self._partitions[key]
            refusal = self._refusal(partition, wanted)
            if refusal:
                connection.send_bytes(refusal)
                return None
            memory = _memory.borrowed(wanted["memory"]) if "memory" in wanted else None
            visit = _Visit(connection, rows, self, partition, memory)
            self._visits.append(visit)
            return visit

    def _refusal(self, partition: _Partition, wanted: dict[str, Any]) -> bytes:
        """Return what to say to a feeder that may not begin; nothing to one that may."""
        if partition.is_begun:  # one more goes on
            return DONE if self.has_ended else b""
        try:
            partition.begin(wanted.get("attempt", 0))
        except Superseded:  # the later one has been told that nothing is here
            return LATER
        if self.has_ended:
            return UNWANTED
        return BUSY if len(self._visits) > wanted["beside"] else b""

    @property
    def failure(self) -> str:
        """Why the program has failed; empty if it hasn't."""
        return self._failure

    @property
    def has_ended(self) -> bool:
        """Whether the program takes no more rows."""
        return bool(self._failure) or self._ended or self._queues.is_terminating


class _Partition(Partition):
    """What has come of a partition, from all who have tried to feed it.

    Attributes
    ----------
    waiting : int
        Chunks that no program has taken.
    visits : list of _Visit
        Those who feed it now: more than one if Spark runs a copy of a slow task. None of them is
        refused, as each brings what the others haven't.
    lock : threading.RLock
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.visits: list[_Visit] = []
        self.lock = threading.RLock()

    @property
    def is_begun(self) -> bool:
        """Whether its rows come here, or have come."""
        return bool(self.visits or len(self.ranges))


class _Visit:
    """One partition that a feeder brings.

    Parameters
    ----------
    connection : Connection
    rows : RowQueue
    server : FeedServer
    partition : _Partition
    memory : memoryview or None
        The feeder's, where chunks may lie.
    """

    def __init__(
        self,
        connection: Connection,
        rows: RowQueue,
        server: FeedServer,
        partition: _Partition,
        memory: memoryview | None,
    ) -> None:
        self._connection, self._rows, self._server = connection, rows, server
        self._partition, self._memory = partition, memory
        self._count = 0
        self._is_through = False
        with partition.lock:  # so that nobody else's rows are spoken of before
            partition.visits.append(self)
            known = len(partition.ranges)
            self._send(WELCOME + msgspec.msgpack.encode((known, memory is not None)))

    def leave(self) -> None:
        """Feed no more; what was sent stays."""
        with self._partition.lock:
            self._partition.visits.remove(self)

    def take(self) -> None:
        """Take rows until the feeder hangs up, which it does after the last answer."""
        self._receive()
        with self._partition.lock:
            self._is_through = True
            self._finish()
        self._connection.recv_bytes()  # nothing: it hangs up

    def answer(self, results: RowQueue | None) -> None:
        """Take all of it, and send one result for each row."""
        if results is None:
            self._send(FAILED + b"this node has no queue 'output'.")
            return
        got = 0
        try:
            self._receive()
            self._rows.put(marker.EndPartition())
            while got < self._count:
                got += self._pass_on(results, got)
            if not results.empty():
                more = results.qsize()
                raise DataError(
                    f"the program gave {self._count + more} results for the {self._count} rows of "
                    "a partition; batch_results() takes one for each row."
                )
            self._send(DONE)
        except (DataError, GridflowError) as error:
            self._send(FAILED + str(error).encode())
        finally:
            self._tidy(results, got)

    def _pass_on(self, results: RowQueue, got: int) -> int:
        while True:
            try:
                found, is_mark, _ = results.take(self._count - got, LOOK_SECONDS)
            except queue.Empty:
                if self._server.failure:
                    raise GridflowError(self._server.failure) from None
                if self._connection.poll(0):
                    raise EOFError from None  # the feeder has nothing more to say: it is gone
                continue
            if is_mark:  # the queue was closed
                raise GridflowError(
                    self._server.failure
                    or f"the program has ended with {got} results for the {self._count} rows of a "
                    "partition."
                )
            self._send(ROWS + pickled(found))
            return len(found)

    def _tidy(self, results: RowQueue, got: int) -> None:
        """Let the next partition begin with empty queues, whatever became of this one."""
        untaken = self._rows.discard(self)
        owed = self._count - untaken - got
        give_up = time.monotonic() + EXPLAIN_SECONDS
        while owed > 0 and not self._server.has_ended and time.monotonic() < give_up:
            with contextlib.suppress(queue.Empty):
                owed -= len(results.take(owed, LOOK_SECONDS)[0])

    def _receive(self) -> None:
        while True:
            message = self._connection.recv_bytes()
            if message.startswith(PARTITION):
                return
            if not message.startswith((ROWS, COLUMNS, SHARED)):
                raise EOFError
            first, count = SPAN.unpack_from(message, 1)
            kind, content, slot = self._content(message)
            rows = _frames.Columns(content) if kind == COLUMNS else _Pickled(content)
            taken = functools.partial(self._chunk_taken, slot)
            self._count += count
            with self._partition.lock:
                known = len(self._partition.ranges)  # without gaps: all of them come here
                new = range(min(max(known - first, 0), count), count)
                self._partition.ranges.add(first + new.start, first + count)
                self._partition.waiting += 1
                self._rows.put_later(rows, new, taken, self)

    def _content(self, message: bytes) -> tuple[bytes, memoryview, bytes]:
        """Return the kind of a chunk, its content, and what tells the feeder its slot."""
        begin = 1 + SPAN.size
        if not message.startswith(SHARED):
            return message[:1], memoryview(message)[begin:], b""
        kind, slot, place, size = PLACE.unpack_from(message, begin)
        assert self._memory is not None
        return kind, self._memory[place : place + size], bytes([slot])

    def _chunk_taken(self, slot: bytes) -> None:
        with self._partition.lock:
            self._partition.waiting -= 1
            visits = list(self._partition.visits)
        for visit in visits:
            visit.go_on(TAKEN + slot if visit is self else PROGRESS)

    def go_on(self, word: bytes) -> None:
        """Let the feeder know that rows of its partition were taken, whoever brought them."""
        self._send(self._word(word))
        self._finish()

    def _finish(self) -> None:
        """Let the feeder go once all rows of its partition were taken."""
        with self._partition.lock:
            is_done = self._is_through and not self._partition.waiting
        if is_done:
            self._send(self._word(DONE))

    def _word(self, word: bytes) -> bytes:
        if self._server.failure:
            return FAILED + self._server.failure.encode()
        return UNWANTED if self._server.has_ended else word

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)


class _Pickled:
    """The rows of a message, which only come all at once."""

    def __init__(self, content: memoryview) -> None:
        self._content: memoryview | None = content
        self._rows: list[Any] = []
        self.run = 1

    def made(self, begin: int, end: int) -> list[Any]:
        """Return some of the rows."""
        if self._content is not None:
            self._rows = pickle.loads(self._content)  # noqa: S301 (of our own feeders)
            self._content = None
        return self._rows[begin:end]
