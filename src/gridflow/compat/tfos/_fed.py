"""The receiving side of the feed: puts rows into a node's queues and takes results from them.

See `gridflow.compat.tfos._feeding` for the sending side and the protocol.
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
    """Receives rows on a node.

    `host`: The address to bind.
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
        """Send all current and future feeders the reason for a failure."""
        self._failure = text
        self._end()

    def end(self) -> None:
        """Accept no more rows: the program has returned."""
        self._ended = True
        self._end()

    def close(self) -> None:
        """Stop listening."""
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
        """Tell a feeder whether it may start; return its visit if so."""
        # A feeder that doesn't name its attempt is treated as the only one.
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
        """Return the answer for a feeder that may not start; empty if it may."""
        if partition.is_begun:  # another attempt continues it
            return DONE if self.has_ended else b""
        try:
            partition.begin(wanted.get("attempt", 0))
        except Superseded:  # the later attempt was told that no rows are here
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
    """The rows received of a partition, from all attempts to feed it.

    `waiting`: Number of chunks that the program hasn't read yet.
    `visits`: The attempts feeding it now. There is more than one if Spark runs a speculative copy
        of a slow task. None is refused, because each may bring rows that the others haven't.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.visits: list[_Visit] = []
        self.lock = threading.RLock()

    @property
    def is_begun(self) -> bool:
        """Whether rows of this partition have arrived, or are arriving, here."""
        return bool(self.visits or len(self.ranges))


class _Visit:
    """One feeder's attempt at sending a partition.

    `memory`: The feeder's shared memory, which may hold chunks.
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
        with partition.lock:  # so that this message precedes any about other feeders' rows
            partition.visits.append(self)
            known = len(partition.ranges)
            self._send(WELCOME + msgspec.msgpack.encode((known, memory is not None)))

    def leave(self) -> None:
        """End the visit; rows already received stay."""
        with self._partition.lock:
            self._partition.visits.remove(self)

    def take(self) -> None:
        """Receive rows until the feeder hangs up, which it does after the last answer."""
        self._receive()
        with self._partition.lock:
            self._is_through = True
            self._finish()
        self._connection.recv_bytes()  # raises EOFError: the feeder hangs up

    def answer(self, results: RowQueue | None) -> None:
        """Receive the whole partition, and send one result for each row."""
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
                    f"the program returned {self._count + more} results for the {self._count} rows "
                    "of a partition; batch_results() needs exactly one for each row."
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
                    raise EOFError from None  # feeders send nothing at this point: it hung up
                continue
            if is_mark:  # the queue was closed
                raise GridflowError(
                    self._server.failure
                    or f"the program ended after {got} results for the {self._count} rows of a "
                    "partition."
                )
            self._send(ROWS + pickled(found))
            return len(found)

    def _tidy(self, results: RowQueue, got: int) -> None:
        """Empty the queues for the next partition, however this one ended."""
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
                known = len(self._partition.ranges)  # no gaps: all rows come to this node
                new = range(min(max(known - first, 0), count), count)
                self._partition.ranges.add(first + new.start, first + count)
                self._partition.waiting += 1
                self._rows.put_later(rows, new, taken, self)

    def _content(self, message: bytes) -> tuple[bytes, memoryview, bytes]:
        """Return a chunk's kind, its content, and its slot as bytes for the answer."""
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
        """Tell the feeder that rows of its partition were read, whichever attempt sent them."""
        self._send(self._word(word))
        self._finish()

    def _finish(self) -> None:
        """Release the feeder once all rows of its partition have been read."""
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
    """The rows of a pickled message, which is decoded as a whole."""

    def __init__(self, content: memoryview) -> None:
        self._content: memoryview | None = content
        self._rows: list[Any] = []
        self.run = 1

    def made(self, begin: int, end: int) -> list[Any]:
        """Return some of the rows."""
        if self._content is not None:
            self._rows = pickle.loads(self._content)  # noqa: S301 (from authenticated feeders)
            self._content = None
        return self._rows[begin:end]
