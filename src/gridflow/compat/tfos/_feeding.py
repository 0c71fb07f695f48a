"""Rows of Spark tasks on their way to nodes, and results on their way back.

A feeder is a task of another Spark job. It looks for the node with the fewest feeders, tells it
what it brings, and sends its partition in chunks; some of them may be on their way or wait there,
so that a node that is slow slows its feeders down. Every chunk is answered once a program has taken
it. The messages are a letter and what belongs to it; rows are pickled, and travel only between
those who know the cluster's key (`gridflow._wire.psk_tls`). Those of a DataFrame travel as its
columns (`gridflow.compat.tfos._frames`). Where both are on one host, the rows lie in memory that
they share (`gridflow.compat.tfos._memory`), and the messages say where.

They go straight into the node's process, not by the agent and its files as those of
`JobHandle.feed` do: that way costs almost twice as much (``benchmarks/feed/compat_ways.py``).
The account of what has come is the same (`gridflow._feed.push.exactly_once`).

A task that is tried again, or a copy of one that is slow, asks all nodes first whether the
partition is there already. If it is, the rows go to the same node, which takes those alone that it
hasn't got: each chunk says where in its partition it begins. So no row comes twice, as long as a
partition has its rows in the same order each time.
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
#: A later try of the same partition has begun to look around.
LATER: Final = b"L"
TAKEN: Final = b"T"
#: Rows of the partition that came otherwise were taken.
PROGRESS: Final = b"G"
PARTITION: Final = b"P"
DONE: Final = b"D"
UNWANTED: Final = b"U"
FAILED: Final = b"F"

#: Chunks of one feeder that a node has and no program has taken.
_AHEAD: Final = 4
#: Rows aren't all of one size: a chunk that is larger than its slot is sent.
_SLOT_BYTES: Final = 2 * CHUNK_BYTES
LOOK_SECONDS: Final = 0.2
_TURN_SECONDS: Final = 0.05
#: How long a feeder waits to hear from the driver why a node is gone.
EXPLAIN_SECONDS: Final = 20.0


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
    attempt : PartitionAttempt, optional
        By which other tries of the same partition are known. Default: there are none.
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
        #: Rows of the partition that were there before.
        self._known = 0
        self.unwanted = False

    def train(self, rows: Iterable[Any], cut: Cut | None = None) -> int:
        """Send rows until all are taken, or no more are wanted; return how many were sent.

        Parameters
        ----------
        rows : iterable
        cut : callable, optional
            Makes chunks of what `rows` yields, from a row on. Default: it yields rows.
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
                    f"partition {self._partition}: the cluster takes no more rows: its program "
                    "has ended, or called terminate() before all were answered."
                )
            while True:
                message = self._hear(f"gave {got} results for the {sent} rows, and no more")
                if message.startswith(ROWS):
                    found = pickle.loads(memoryview(message)[1:])  # noqa: S301 (our own node)
                    got += len(found)
                    yield from found
                elif message.startswith(DONE):
                    return
        raise GridflowError(
            f"partition {self._partition}: the program has ended with {got} results for {sent} "
            "rows."
        )

    @contextlib.contextmanager
    def _explained(self, source: _Source) -> Iterator[None]:
        """Hang up in the end; say why the connection broke, unless the cluster has ended well."""
        try:
            yield
        except GridflowError:
            raise  # a timeout is an OSError, too
        except (EOFError, OSError, AuthenticationError) as error:
            if source.error is error:
                raise  # the rows' own
            self._explain(error)
            self.unwanted = True
        finally:
            self._hang_up()
            if self._lent is not None:
                self._lent.close()

    def _find(self, *, answers: bool) -> bool:
        """Connect to the node with the fewest feeders; False if no rows are wanted any more.

        A node that answers has one feeder at a time, for whose end others wait. Where rows of the
        partition are already, all of them go.
        """
        hello: dict[str, Any] = {"queue": self._queue, "answers": answers, "beside": 0}
        self._lent = _memory.Lent.where_it_can(_AHEAD, _SLOT_BYTES)
        if self._lent is not None:
            hello["memory"] = self._lent.offer
        if self._attempt is not None and not answers:
            # First all of them hear of this try, and let none before it begin; beside so few
            # feeders it could only go on.
            hello |= {**self._attempt.header(f"{self._attempt.stage}"), "beside": -1}
        while True:
            unwanted = 0
            for place in range(len(self._nodes)):
                reply = self._ask(place, hello)
                if reply.startswith(DONE):  # there it has begun
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
        """Return what a node answers."""
        if place not in self._lines:
            node = self._nodes[place]
            self._lines[place] = psk_tls.knock(tuple(node["addr"]), node["authkey"])
        line = self._lines[place]
        line.send_bytes(HELLO + msgspec.msgpack.encode(hello))
        reply = line.recv_bytes()
        if reply.startswith(FAILED):
            raise _failed(reply)
        if reply.startswith(LATER):
            raise TaskLost(f"partition {self._partition} is fed by a later try of the same task.")
        return reply

    def _bring(self, chunks: Iterable[Chunk]) -> Iterator[int]:
        """Send chunks while they are wanted, then the end; yield how many rows are in each."""
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
        """Write a chunk where the node can read it, and return the message that says where."""
        taken = None if self._lent is None else self._lent.take(chunk.size)
        if self._lent is None or taken is None:
            return None
        slot, place = taken
        chunk.write(self._lent.view(place))
        where = PLACE.pack(chunk.kind, slot, place.start, chunk.size)
        return SHARED + SPAN.pack(chunk.first, chunk.count) + where

    def _hear(self, what: str = "took no row") -> bytes:
        """Return what the node says next."""
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
            self._lent.free.extend(message[1:])  # the number of its slot, if it had one
        self.unwanted |= message.startswith(UNWANTED)
        return message

    def _hang_up(self, but: Connection | None = None) -> None:
        for place in [place for place, line in self._lines.items() if line is not but]:
            self._lines.pop(place).close()

    def _explain(self, error: BaseException) -> None:
        """Raise why the cluster has failed, if it hasn't ended well."""
        give_up = time.monotonic() + EXPLAIN_SECONDS
        while time.monotonic() < give_up:
            state = _state_of(*self._server)
            if state is None:
                break
            if state["failure"]:
                raise GridflowError(f"the cluster has failed:\n{state['failure']}") from error
            if state["finished"]:
                return
            time.sleep(LOOK_SECONDS)
        raise TaskLost(
            f"partition {self._partition}: the connection to a node of the cluster broke: "
            f"{error or type(error).__name__}"
        ) from error


class _Source:
    """Rows, and what reading them has failed with.

    Parameters
    ----------
    rows : iterable
    """

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
