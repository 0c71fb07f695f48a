"""The sending side of the feed: Spark tasks send rows to nodes and receive results.

A feeder is a task of a separate Spark job. It looks for the node with the fewest feeders, announces
its partition, and sends it in chunks. Only a few chunks may be unread at a time, so a slow node
slows its feeders down. The node acknowledges each chunk once the program has read it. A message is
a letter followed by its content. Rows are pickled, and travel only between processes that hold the
cluster's key (`gridflow._wire.psk_tls`). Rows of a DataFrame travel as columns
(`gridflow.compat.tfos._frames`). If both sides are on one host, the rows are in shared memory
(`gridflow.compat.tfos._memory`), and the messages contain their location.

Rows go straight to the node's process. `JobHandle.feed` sends them through the agent and its files,
which takes almost twice as long (``benchmarks/feed/compat_ways.py``). Both track received rows in
the same way (`gridflow._feed.push.exactly_once`).

A retried task, or a speculative copy of a slow one, first asks all nodes whether they have rows of
its partition. If one does, the rows go to that node, which keeps only those it doesn't have yet:
each chunk names its first row's index in the partition. So no row arrives twice, provided that a
partition has the same order each time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import time
from multiprocessing import AuthenticationError
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gridflow._wire import psk_tls
from gridflow.compat.tfos import _chunks, _memory, reservation
from gridflow.compat.tfos._chunks import CHUNK_BYTES, PLACE, ROWS, SHARED, SPAN, Chunk, Cut
from gridflow.errors import GridflowError, RunTimeout, TaskLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gridflow._feed.push.exactly_once import PartitionAttempt
    from gridflow._wire.psk_tls import Connection


_log = logging.getLogger(__name__)

HELLO: Final = b"H"
WELCOME: Final = b"W"
BUSY: Final = b"B"
#: A later attempt at the same partition has started.
LATER: Final = b"L"
TAKEN: Final = b"T"
#: Rows of the partition that another attempt sent were read.
PROGRESS: Final = b"G"
PARTITION: Final = b"P"
DONE: Final = b"D"
UNWANTED: Final = b"U"
FAILED: Final = b"F"

#: Limit on chunks sent by one feeder and not yet read by the program.
_AHEAD: Final = 4
#: Rows vary in size; a chunk that doesn't fit a slot is sent over the connection.
_SLOT_BYTES: Final = 2 * CHUNK_BYTES
LOOK_SECONDS: Final = 0.2
_TURN_SECONDS: Final = 0.05
#: How long a feeder waits for the driver to report why a node is gone.
EXPLAIN_SECONDS: Final = 20.0


class Feeder:
    """Sends one partition.

    `nodes`: The cluster's nodes; those with an address are fed.
    `feed_timeout`: Feeding fails after this many seconds without progress.
    `qname`: Name of the queue.
    `partition`: Used in messages, and to choose the first node to ask.
    `attempt`: Identifies the attempt among others at the same partition. Default: it is the only
        one.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        feed_timeout: float,
        qname: str,
        partition: int,
        attempt: PartitionAttempt | None = None,
    ) -> None:
        self._nodes = [node for node in nodes if node.get("addr")]
        self._patience, self._queue, self._partition = feed_timeout, qname, partition
        self._attempt = attempt
        self._server = nodes[0]["server_addr"], nodes[0]["authkey"]
        first = partition % max(len(self._nodes), 1)
        self._nodes = self._nodes[first:] + self._nodes[:first]
        self._lines: dict[int, Connection] = {}
        self._connection: Connection | None = None
        self._lent: _memory.Lent | None = None
        self._open = 0
        #: Number of the partition's rows that the node already had.
        self._known = 0
        self.unwanted = False

    def train(self, rows: Iterable[Any], cut: Cut | None = None) -> int:
        """Send rows until all are read or no more are wanted; return the number of rows sent.

        `cut`: Makes chunks of the items of `rows`, starting at a given row. Default: the items are
            rows.
        """
        count, source = 0, _Source(rows)
        with self._explained(source):
            if self._find(answers=False):
                for size in self._bring((cut or _chunks.cut)(source, self._known)):
                    count += size
            while not self.unwanted and not self._hear().startswith(DONE):
                pass
        return count

    def infer(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Send rows, and yield a result for each."""
        source = _Source(rows)
        chunks = _chunks.in_chunks(source)
        first = next(chunks, None)
        if first is None:
            return
        sent = got = 0
        with self._explained(source):
            if self._find(answers=True):
                for size in self._bring(itertools.chain([first], chunks)):
                    sent += size
            if self.unwanted:
                raise GridflowError(
                    f"partition {self._partition}: the cluster accepts no more rows: its program "
                    "has ended, or called terminate() before it had returned all results."
                )
            while True:
                message = self._hear(f"returned only {got} results for {sent} rows, and no more")
                if message.startswith(ROWS):
                    found = pickle.loads(memoryview(message)[1:])  # noqa: S301 (authenticated node)
                    got += len(found)
                    yield from found
                elif message.startswith(DONE):
                    return
        raise GridflowError(
            f"partition {self._partition}: the program ended after {got} results for {sent} rows."
        )

    @contextlib.contextmanager
    def _explained(self, source: _Source) -> Iterator[None]:
        """Close the connections at the end; explain a broken one unless the cluster has ended."""
        try:
            yield
        except GridflowError:
            raise  # RunTimeout is an OSError, too
        except (EOFError, OSError, AuthenticationError) as error:
            if source.error is error:
                raise  # from reading the rows
            self._explain(error)
            self.unwanted = True
        finally:
            self._hang_up()
            if self._lent is not None:
                self._lent.close()

    def _find(self, *, answers: bool) -> bool:
        """Connect to the node with the fewest feeders; return False if no more rows are wanted.

        A node that returns results has one feeder at a time, and others wait their turn. If a node
        already has rows of the partition, the whole partition goes there.
        """
        hello: dict[str, Any] = {"queue": self._queue, "answers": answers, "beside": 0}
        self._lent = _memory.Lent.where_it_can(_AHEAD, _SLOT_BYTES)
        if self._lent is not None:
            hello["memory"] = self._lent.offer
        if self._attempt is not None and not answers:
            # Announce this attempt to all nodes first, so that they refuse earlier ones. With this
            # limit a node only accepts it to continue a partition.
            hello |= {**self._attempt.header(f"{self._attempt.stage}"), "beside": -1}
        while True:
            unwanted = 0
            for place in range(len(self._nodes)):
                reply = self._ask(place, hello)
                if reply.startswith(DONE):  # the node had begun the partition, and has ended
                    unwanted = len(self._nodes)
                    break
                if reply.startswith(WELCOME):
                    self._connection = self._lines[place]
                    self._known, has_memory = msgspec.msgpack.decode(reply[1:])
                    if self._lent is not None and not has_memory:
                        self._lent.free.clear()
                    self._hang_up(self._connection)
                    return True
                unwanted += reply.startswith(UNWANTED)
            if unwanted == len(self._nodes):
                self.unwanted = True
                return False
            if answers:
                time.sleep(_TURN_SECONDS)
            else:
                hello["beside"] += 1

    def _ask(self, place: int, hello: Mapping[str, Any]) -> bytes:
        """Return a node's answer."""
        if place not in self._lines:
            node = self._nodes[place]
            self._lines[place] = psk_tls.knock(tuple(node["addr"]), node["authkey"])
        line = self._lines[place]
        line.send_bytes(HELLO + msgspec.msgpack.encode(hello))
        reply = line.recv_bytes()
        if reply.startswith(FAILED):
            raise _failed(reply)
        if reply.startswith(LATER):
            raise TaskLost(f"a later attempt of the same task feeds partition {self._partition}.")
        return reply

    def _bring(self, chunks: Iterable[Chunk]) -> Iterator[int]:
        """Send chunks while they are wanted, then the end; yield each chunk's number of rows."""
        assert self._connection is not None
        for chunk in chunks:
            self._connection.send_bytes(self._shared(chunk) or chunk.message())
            self._open += 1
            yield chunk.count
            while self._open >= _AHEAD and not self.unwanted:
                self._hear()
            if self.unwanted:
                return
        self._connection.send_bytes(PARTITION)

    def _shared(self, chunk: Chunk) -> bytes | None:
        """Write a chunk to shared memory, and return the message with its location."""
        taken = None if self._lent is None else self._lent.take(chunk.size)
        if self._lent is None or taken is None:
            return None
        slot, place = taken
        chunk.write(self._lent.view(place))
        where = PLACE.pack(chunk.kind, slot, place.start, chunk.size)
        return SHARED + SPAN.pack(chunk.first, chunk.count) + where

    def _hear(self, what: str = "read no row") -> bytes:
        """Return the node's next message."""
        assert self._connection is not None
        if not self._connection.poll(self._patience):
            raise RunTimeout(
                f"Timeout while feeding partition {self._partition}: the program {what} for "
                f"{self._patience:g} seconds (feed_timeout)."
            )
        message = self._connection.recv_bytes()
        if message.startswith(FAILED):
            raise _failed(message)
        self._open -= message.startswith((TAKEN, UNWANTED))
        if message.startswith(TAKEN) and self._lent is not None:
            self._lent.free.extend(message[1:])  # the chunk's slot, if it had one
        self.unwanted |= message.startswith(UNWANTED)
        return message

    def _hang_up(self, but: Connection | None = None) -> None:
        for place in [place for place, line in self._lines.items() if line is not but]:
            self._lines.pop(place).close()

    def _explain(self, error: BaseException) -> None:
        """Raise the cluster's error, unless it ended without one."""
        give_up = time.monotonic() + EXPLAIN_SECONDS
        while time.monotonic() < give_up:
            state = _state_of(*self._server)
            if state is None:
                break
            if state["failure"]:
                raise GridflowError(f"the cluster failed:\n{state['failure']}") from error
            if state["finished"]:
                return
            time.sleep(LOOK_SECONDS)
        raise TaskLost(
            f"partition {self._partition}: the connection to a node of the cluster broke: "
            f"{error or type(error).__name__}"
        ) from error


class _Source:
    """Iterates over rows, and remembers the error if reading fails."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = iter(rows)
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._rows
        except Exception as error:
            self.error = error
            raise


def _failed(message: bytes) -> GridflowError:
    return GridflowError(f"the cluster's program failed:\n{message[1:].decode()}")


def _state_of(address: Sequence[Any], key: bytes) -> dict[str, Any] | None:
    """Return the cluster's state from the driver; None if the driver is unreachable."""
    try:
        client = reservation.Client((address[0], address[1]), key)
    except (OSError, AuthenticationError):
        return None
    with contextlib.closing(client), contextlib.suppress(OSError, EOFError):
        return client.get_state()
    return None
