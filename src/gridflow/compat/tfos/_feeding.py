"""Rows of Spark tasks on their way to nodes, and results on their way back.

A feeder is a task of another Spark job. It looks for the node with the fewest feeders, tells it
what it brings, and sends its partition in chunks; some of them may be on their way or wait there,
so that a node that is slow slows its feeders down. Every chunk is answered once a program has taken
it. The messages are a letter and what belongs to it; rows are pickled, and unpickled only by who
has proved to know the cluster's key (`gridflow.compat.tfos._door`).
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import queue
import threading
import time
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import msgspec

from gridflow.compat.tfos import _door, marker, reservation
from gridflow.errors import DataError, GridflowError, RunTimeout, TaskLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from gridflow.compat.tfos._queues import NodeQueues, RowQueue

_log = logging.getLogger(__name__)

_HELLO: Final = b"H"
_WELCOME: Final = b"W"
_BUSY: Final = b"B"
_ROWS: Final = b"R"
_TAKEN: Final = b"T"
_PARTITION: Final = b"P"
_DONE: Final = b"D"
_UNWANTED: Final = b"U"
_FAILED: Final = b"F"

#: Rows are sent in chunks of about this size; a slow source's are sent sooner.
_CHUNK_BYTES: Final = 512 << 10
_FIRST_ROWS: Final = 16
_MOST_ROWS: Final = 8192
_FLUSH_SECONDS: Final = 0.1
#: Chunks of one feeder that a node has and no program has taken.
_AHEAD: Final = 4
_LOOK_SECONDS: Final = 0.2
_TURN_SECONDS: Final = 0.05
#: How long a feeder waits to hear from the driver why a node is gone.
_EXPLAIN_SECONDS: Final = 20.0


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
            if not hello.startswith(_HELLO):
                return
            wanted = msgspec.msgpack.decode(hello[1:])
            if self._failure:
                connection.send_bytes(_FAILED + self._failure.encode())
                return
            if self._ended or self._queues.is_terminating:
                connection.send_bytes(_UNWANTED)
                return
            rows = self._queues.get_queue(wanted["queue"])
            if rows is None:
                text = f"this node has no queue {wanted['queue']!r}."
                connection.send_bytes(_FAILED + text.encode())
                return
            with self._lock:
                welcome = len(self._feeders) <= wanted["beside"]
                if welcome:
                    self._feeders.add(connection)
            if not welcome:
                connection.send_bytes(_BUSY)
                continue
            try:
                visit = _Visit(connection, rows, self)
                connection.send_bytes(_WELCOME)
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
            self._send(_FAILED + b"this node has no queue 'output'.")
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
            self._send(_DONE)
        except (DataError, GridflowError) as error:
            self._send(_FAILED + str(error).encode())
        finally:
            self._tidy(results, got)

    def _pass_on(self, results: RowQueue, got: int) -> int:
        while True:
            try:
                found, is_mark, _ = results.take(self._count - got, _LOOK_SECONDS)
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
            self._send(_ROWS + _pickled(found))
            return len(found)

    def _tidy(self, results: RowQueue, got: int) -> None:
        """Let the next partition begin with empty queues, whatever became of this one."""
        untaken = self._rows.discard(self)
        owed = self._count - untaken - got
        give_up = time.monotonic() + _EXPLAIN_SECONDS
        while owed > 0 and not self._server.has_ended and time.monotonic() < give_up:
            with contextlib.suppress(queue.Empty):
                owed -= len(results.take(owed, _LOOK_SECONDS)[0])

    def _receive(self) -> None:
        while True:
            message = self._connection.recv_bytes()
            if message.startswith(_PARTITION):
                return
            if not message.startswith(_ROWS):
                raise EOFError
            rows = pickle.loads(memoryview(message)[1:])  # noqa: S301 (it has proved who it is)
            self._count += len(rows)
            self._rows.put_rows(rows, self._chunk_taken, self)

    def _chunk_taken(self) -> None:
        if self._server.failure:
            self._send(_FAILED + self._server.failure.encode())
        else:
            self._send(_UNWANTED if self._server.has_ended else _TAKEN)

    def _send(self, message: bytes) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(message)


class Feeder:
    """A feeder's side: one partition.

    Parameters
    ----------
    nodes : sequence of dict
        The cluster's list; those that have an address are fed.
    feed_timeout : float
        Seconds without any progress after which feeding fails.
    qname : str
    partition : int
        For messages, and for where to begin looking for a node.
    """

    def __init__(
        self, nodes: Sequence[Mapping[str, Any]], feed_timeout: float, qname: str, partition: int
    ) -> None:
        self._nodes = [node for node in nodes if node.get("addr")]
        self._patience, self._queue, self._partition = feed_timeout, qname, partition
        self._server = nodes[0]["server_addr"], nodes[0]["authkey"]
        first = partition % max(len(self._nodes), 1)
        self._nodes = self._nodes[first:] + self._nodes[:first]
        self._connection: Connection | None = None
        self._open = 0
        self.unwanted = False

    def train(self, rows: Iterable[Any]) -> int:
        """Send rows until all are taken, or no more are wanted; return how many were sent."""
        count = 0
        try:
            if not self._find(answers=False):
                return 0
            for chunk, size in _chunks(rows):
                self._send(chunk)
                count += size
                self._await_room(_AHEAD - 1)
                if self.unwanted:
                    return count
            self._await_room(0)
        except GridflowError:
            raise  # a timeout is an OSError, too
        except (EOFError, OSError, AuthenticationError) as error:
            if not self._explain(error):
                self.unwanted = True
        finally:
            self._hang_up()
        return count

    def infer(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Send rows, and yield a result for each."""
        chunks = _chunks(rows)
        first = next(chunks, None)
        if first is None:
            return
        sent = got = 0
        try:
            if not self._find(answers=True):
                raise GridflowError(
                    f"partition {self._partition}: the cluster takes no more rows, its program "
                    "has ended or called terminate()."
                )
            for chunk, size in _with_first(first, chunks):
                self._send(chunk)
                sent += size
                self._await_room(_AHEAD - 1)
            self._send(_PARTITION)
            while True:
                message = self._receive(f"gave {got} results for the {sent} rows, and no more")
                if message.startswith(_ROWS):
                    found = pickle.loads(memoryview(message)[1:])  # noqa: S301 (our own node)
                    got += len(found)
                    yield from found
                elif message.startswith(_DONE):
                    return
        except GridflowError:
            raise
        except (EOFError, OSError, AuthenticationError) as error:
            self._explain(error)
            raise GridflowError(
                f"partition {self._partition}: the program has ended with {got} results for "
                f"{sent} rows."
            ) from error
        finally:
            self._hang_up()

    def _find(self, *, answers: bool) -> bool:
        """Connect to the node with the fewest feeders; False if no rows are wanted any more.

        A node that answers has one feeder at a time, for whose end others wait.
        """
        beside = 0
        while True:
            unwanted = 0
            for node in self._nodes:
                hello = {"queue": self._queue, "answers": answers, "beside": beside}
                self._connection = _door.knock(tuple(node["addr"]), node["authkey"])
                self._connection.send_bytes(_HELLO + msgspec.msgpack.encode(hello))
                reply = self._connection.recv_bytes()
                if reply.startswith(_WELCOME):
                    return True
                self._hang_up()
                if reply.startswith(_FAILED):
                    raise _failed(reply)
                unwanted += reply.startswith(_UNWANTED)
            if unwanted == len(self._nodes):
                self.unwanted = True
                return False
            if answers:
                time.sleep(_TURN_SECONDS)
            else:
                beside += 1

    def _send(self, message: bytes) -> None:
        assert self._connection is not None
        self._connection.send_bytes(message)
        self._open += message.startswith(_ROWS)

    def _await_room(self, most: int) -> None:
        while self._open > most and not self.unwanted:
            message = self._receive()
            if message.startswith(_TAKEN):
                self._open -= 1
            elif message.startswith(_UNWANTED):
                self._open -= 1
                self.unwanted = True

    def _receive(self, what: str = "took no row") -> bytes:
        assert self._connection is not None
        if not self._connection.poll(self._patience):
            raise RunTimeout(
                f"Timeout while feeding partition {self._partition}: the program {what} for "
                f"{self._patience:g} seconds (feed_timeout)."
            )
        message = self._connection.recv_bytes()
        if message.startswith(_FAILED):
            raise _failed(message)
        return message

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _explain(self, error: BaseException) -> bool:
        """Raise why the cluster has failed; return False if it has ended well instead."""
        give_up = time.monotonic() + _EXPLAIN_SECONDS
        while time.monotonic() < give_up:
            state = _state_of(*self._server)
            if state is None:
                break
            if state["failure"]:
                raise GridflowError(f"the cluster has failed:\n{state['failure']}") from error
            if state["finished"]:
                return False
            time.sleep(_LOOK_SECONDS)
        raise TaskLost(
            f"partition {self._partition}: the connection to a node of the cluster broke: "
            f"{error or type(error).__name__}"
        ) from error


def _failed(message: bytes) -> GridflowError:
    return GridflowError(f"the program of the cluster failed:\n{message[1:].decode()}")


def _state_of(address: Sequence[Any], key: bytes) -> dict[str, Any] | None:
    """Return what the driver knows; None if it can't be asked."""
    try:
        client = reservation.Client((address[0], address[1]), key)
    except (OSError, AuthenticationError):
        return None
    with contextlib.closing(client), contextlib.suppress(OSError, EOFError):
        return client.get_state()
    return None


def _chunks(rows: Iterable[Any]) -> Iterator[tuple[bytes, int]]:
    """Yield rows as messages of about the same size, and how many are in each."""
    limit, chunk, began = _FIRST_ROWS, [], time.monotonic()
    for row in rows:
        chunk.append(row)
        if len(chunk) < limit and (
            len(chunk) % _FIRST_ROWS or time.monotonic() - began < _FLUSH_SECONDS
        ):
            continue
        message = _ROWS + _pickled(chunk)
        limit = max(1, min(_MOST_ROWS, _CHUNK_BYTES * len(chunk) // len(message)))
        yield message, len(chunk)
        chunk, began = [], time.monotonic()
    if chunk:
        yield _ROWS + _pickled(chunk), len(chunk)


def _with_first(
    first: tuple[bytes, int], others: Iterator[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int]]:
    yield first
    yield from others


def _pickled(rows: list[Any]) -> bytes:
    try:
        return pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(rows))  # classes of the program's own
