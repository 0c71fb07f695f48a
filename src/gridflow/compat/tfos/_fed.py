"""The side of a node that is fed: rows go into its queues, results come out of them.

See `gridflow.compat.tfos._feeding` for the other side, and for what they say to each other.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gridflow.compat.tfos import marker
from gridflow.compat.tfos._feeding import (
    ASK,
    BEGUN,
    BUSY,
    DONE,
    EXPLAIN_SECONDS,
    FAILED,
    HELLO,
    LATER,
    LOOK_SECONDS,
    PARTITION,
    PROGRESS,
    ROWS,
    SPAN,
    TAKEN,
    UNWANTED,
    WELCOME,
    pickled,
)
from gridflow.errors import DataError, GridflowError
from gridflow.wire import door

if TYPE_CHECKING:
    from gridflow.compat.tfos._queues import NodeQueues, RowQueue
    from gridflow.wire.door import Connection


#: Partitions whose rows are known to have come; the oldest are forgotten.
_REMEMBERED: Final = 100_000


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
        self._feeders: set[Connection] = set()
        self._partitions: OrderedDict[tuple[int, int], _Partition] = OrderedDict()
        self._failure = ""
        self._ended = False
        listener = door.listen(host)
        self.port = int(listener.getsockname()[1])
        self._door = door.Door(listener, key, self._serve)

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
            if not hello.startswith((ASK, HELLO)):
                return
            wanted = msgspec.msgpack.decode(hello[1:])
            if self._failure:
                connection.send_bytes(FAILED + self._failure.encode())
                return
            if hello.startswith(ASK):
                connection.send_bytes(ASK + (BEGUN if self._is_begun(wanted) else b""))
                continue
            if self._ended or self._queues.is_terminating:
                connection.send_bytes(UNWANTED)
                continue
            rows = self._queues.get_queue(wanted["queue"])
            if rows is None:
                text = f"this node has no queue {wanted['queue']!r}."
                connection.send_bytes(FAILED + text.encode())
                return
            with self._lock:
                partition = self._partition(wanted)
                reply = partition.judge(wanted.get("attempt", 0))
                if not reply and not partition.begun and len(self._feeders) > wanted["beside"]:
                    reply = BUSY
                if not reply:
                    partition.begun = True
                    self._feeders.add(connection)
            if reply:
                connection.send_bytes(reply)
                continue
            try:
                visit = _Visit(connection, rows, self, partition)
                connection.send_bytes(WELCOME + msgspec.msgpack.encode(partition.rows))
                visit.answer(self._queues.get_queue("output")) if wanted[
                    "answers"
                ] else visit.take()
            finally:
                with self._lock:
                    self._feeders.discard(connection)

    def _is_begun(self, wanted: dict[str, Any]) -> bool:
        """Return whether rows of a partition come here, or have come; note who wants to know."""
        with self._lock:
            partition = self._partition(wanted)
            partition.attempt = max(partition.attempt, wanted["attempt"])
            return partition.begun

    def _partition(self, wanted: dict[str, Any]) -> _Partition:
        """Return what is known of a partition, with the lock."""
        if "key" not in wanted:
            return _Partition()
        stage, number = wanted["key"]
        found = self._partitions.setdefault((stage, number), _Partition())
        self._partitions.move_to_end((stage, number))
        if len(self._partitions) > _REMEMBERED:
            self._partitions.popitem(last=False)
        return found

    @property
    def failure(self) -> str:
        """Why the program has failed; empty if it hasn't."""
        return self._failure

    @property
    def has_ended(self) -> bool:
        """Whether the program takes no more rows."""
        return bool(self._failure) or self._ended or self._queues.is_terminating


class _Partition:
    """What has come of a partition, from all who have tried to feed it.

    Attributes
    ----------
    begun : bool
        Whether its rows come here.
    attempt : int
        The latest try that has asked for it.
    rows : int
        How many have come, from its first on.
    waiting : int
        Chunks that no program has taken.
    visits : list of _Visit
        Those who feed it now: more than one if Spark runs a copy of a slow task.
    lock : threading.RLock
    """

    def __init__(self) -> None:
        self.begun, self.attempt = False, 0
        self.rows = self.waiting = 0
        self.visits: list[_Visit] = []
        self.lock = threading.RLock()

    def judge(self, attempt: int) -> bytes:
        """Return what to say to a try that may not begin; nothing to one that may."""
        # A later one has been told that nothing is here, and may have begun elsewhere.
        return b"" if self.begun or attempt >= self.attempt else LATER


class _Visit:
    """One partition that a feeder brings.

    Parameters
    ----------
    connection : Connection
    rows : RowQueue
    server : FeedServer
    partition : _Partition
    """

    def __init__(
        self, connection: Connection, rows: RowQueue, server: FeedServer, partition: _Partition
    ) -> None:
        self._connection, self._rows, self._server = connection, rows, server
        self._partition = partition
        self._count = 0
        self._is_through = False

    def take(self) -> None:
        """Take rows into the queue until the feeder hangs up, which it does after the last answer.

        One that dies leaves what it has sent.
        """
        with self._partition.lock:
            self._partition.visits.append(self)
        try:
            self._receive()
            with self._partition.lock:
                self._is_through = True
                self._finish()
            self._connection.recv_bytes()  # nothing: it hangs up
        finally:
            with self._partition.lock:
                self._partition.visits.remove(self)

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
            if not message.startswith(ROWS):
                raise EOFError
            first, count = SPAN.unpack_from(message, 1)
            rows = memoryview(message)[1 + SPAN.size :]
            self._count += count
            with self._partition.lock:
                new = range(min(max(self._partition.rows - first, 0), count), count)
                self._partition.rows += len(new)
                self._partition.waiting += 1
                self._rows.put_pickled(rows, new, self._chunk_taken, self)

    def _chunk_taken(self) -> None:
        with self._partition.lock:
            self._partition.waiting -= 1
            visits = list(self._partition.visits)
        self._send(self._word(TAKEN))
        for visit in visits:
            visit.go_on(is_own=visit is self)

    def go_on(self, *, is_own: bool) -> None:
        """Let the feeder know that rows of its partition were taken, whoever brought them."""
        if not is_own:
            self._send(self._word(PROGRESS))
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
