"""The side of a node that is fed: rows go into its queues, results come out of them.

See `gridflow.compat.tfos._feeding` for the other side, and for what they say to each other.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from gridflow.compat.tfos import _door, marker
from gridflow.compat.tfos._feeding import (
    BUSY,
    DONE,
    EXPLAIN_SECONDS,
    FAILED,
    HELLO,
    LOOK_SECONDS,
    PARTITION,
    ROWS,
    TAKEN,
    UNWANTED,
    WELCOME,
    pickled,
)
from gridflow.errors import DataError, GridflowError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

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
        self._feeders: set[Connection] = set()
        self._failure = ""
        self._ended = False
        listener = _door.listen(host)
        self.port = int(listener.getsockname()[1])
        self._door = _door.Door(listener, key, self._serve)

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
            if self._failure:
                connection.send_bytes(FAILED + self._failure.encode())
                return
            if self._ended or self._queues.is_terminating:
                connection.send_bytes(UNWANTED)
                return
            rows = self._queues.get_queue(wanted["queue"])
            if rows is None:
                text = f"this node has no queue {wanted['queue']!r}."
                connection.send_bytes(FAILED + text.encode())
                return
            with self._lock:
                welcome = len(self._feeders) <= wanted["beside"]
                if welcome:
                    self._feeders.add(connection)
            if not welcome:
                connection.send_bytes(BUSY)
                continue
            try:
                visit = _Visit(connection, rows, self)
                connection.send_bytes(WELCOME)
                visit.answer(self._queues.get_queue("output")) if wanted[
                    "answers"
                ] else visit.take()
            finally:
                with self._lock:
                    self._feeders.discard(connection)

    @property
    def failure(self) -> str:
        """Why the program has failed; empty if it hasn't."""
        return self._failure

    @property
    def has_ended(self) -> bool:
        """Whether the program takes no more rows."""
        return bool(self._failure) or self._ended or self._queues.is_terminating


class _Visit:
    """One partition that a feeder brings.

    Parameters
    ----------
    connection : Connection
    rows : RowQueue
    server : FeedServer
    """

    def __init__(self, connection: Connection, rows: RowQueue, server: FeedServer) -> None:
        self._connection, self._rows, self._server = connection, rows, server
        self._sending = threading.Lock()
        self._count = 0

    def take(self) -> None:
        """Take rows into the queue until the feeder hangs up, which it does after the last answer.

        One that dies leaves what it has sent.
        """
        self._receive()

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
            rows = pickle.loads(memoryview(message)[1:])  # noqa: S301 (it has proved who it is)
            self._count += len(rows)
            self._rows.put_rows(rows, self._chunk_taken, self)

    def _chunk_taken(self) -> None:
        if self._server.failure:
            self._send(FAILED + self._server.failure.encode())
        else:
            self._send(UNWANTED if self._server.has_ended else TAKEN)

    def _send(self, message: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(message)
