"""Sends the rows of one partition to the agents of a job, first to the one with most room."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import flight

from gridflow._feed.push.exactly_once import Ranges, deal
from gridflow._feed.push.located import in_file
from gridflow._feed.store import Segment
from gridflow._feed.store.segment import Located
from gridflow._wire.receiver import ReceiverClient
from gridflow.errors import SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gridflow._wire.identity import Identity

__all__ = ["Destination", "PartitionSender", "check_columns", "send_all"]

_BEGIN_SECONDS: Final = 60.0
#: Batches sent to an agent but not yet acknowledged.
_AHEAD: Final = 1


@dataclass(frozen=True)
class Destination:
    """The destination of rows; sent to the feeders' tasks, pickled.

    `feed`: Unique id of the call of `feed`.
    `receivers`: ``host:port`` of each rank's agent, in order.
    `is_whole`: Whether all rows of a partition go to one rank, as long as it takes rows.
    `timeout`: If set, feeders wait until rows are read, as long as the function reads a row within
        so many seconds; by default until they are stored.
    """

    stream: str
    feed: str
    receivers: tuple[str, ...]
    identity: Identity
    is_whole: bool = False
    timeout: float | None = None


class PartitionSender:
    """Sends a partition's rows, each exactly once despite retries.

    `attempt`: Greater than that of any attempt before it.
    """

    def __init__(self, destination: Destination, partition: int, attempt: int) -> None:
        self._header = {
            "stream": destination.stream,
            "feed": destination.feed,
            "partition": partition,
            "attempt": attempt,
            "timeout": destination.timeout or 0.0,
        }
        self._destination, self._partition = destination, partition
        #: The agent that has all rows, if they go to one.
        self._chosen = -1
        self._lines = {
            number: _Line(ReceiverClient(address, destination.identity), self._header)
            for number, address in enumerate(destination.receivers)
        }
        self._arrived = Ranges()
        for number, line in self._lines.items():
            for first, stop in line.begin():
                self._arrived.add(first, stop)
                self._chosen = number
        self._at = 0

    @property
    def has_ended(self) -> bool:
        """Whether no agent accepts rows any more."""
        return all(line.has_ended for line in self._lines.values())

    def send(self, batch: pa.RecordBatch | Located) -> bool:
        """Send the next rows of the partition; return False if no more rows are wanted."""
        first, self._at = self._at, self._at + batch.num_rows
        for begin, end in list(self._arrived.missing(first, self._at)):
            self._deal(begin, batch.slice(begin - first, end - begin))
        return not self.has_ended

    @property
    def at(self) -> int:
        """The position of the next row in the partition."""
        return self._at

    def settle(self, stop: int) -> None:
        """Wait until all rows before a position are stored by their agents."""
        while waiting := [line for line in self._lines.values() if line.waits_for(stop)]:
            for line in waiting:
                for first, part in line.hear_before(stop):
                    self._deal(first, part)

    def close(self) -> int:
        """Wait until all rows are stored, or read, as the destination says; return their number."""
        self.settle(self._at)
        for line in self._lines.values():
            if self._destination.timeout is not None:
                line.settle()
            line.finish()
            for first, stop in line.accepted:
                self._arrived.add(first, stop)
        return len(self._arrived)

    def _deal(self, first: int, batch: pa.RecordBatch | Located) -> None:
        """Send rows; those that an agent rejects because its rank is done go to others."""
        parts = deque([(first, batch)])
        while parts and not self.has_ended:
            first, batch = parts.popleft()
            pending = {n: line.pending for n, line in self._lines.items() if not line.has_ended}
            at = 0
            for number, rows in self._shares(batch.num_rows, pending).items():
                parts.extend(self._lines[number].send(first + at, batch.slice(at, rows)))
                at += rows

    def _shares(self, rows: int, pending: dict[int, int]) -> dict[int, int]:
        """Return how many of the next rows each agent gets."""
        if not self._destination.is_whole:
            return deal(rows, pending)
        if self._chosen not in pending:
            # If all have as many waiting rows, partitions spread over them.
            begin = self._partition % len(self._lines)
            self._chosen = min(pending, key=lambda n: (pending[n], n < begin, n))
        return {self._chosen: rows}

    def abort(self) -> None:
        """Close the connections immediately."""
        for line in self._lines.values():
            line.abort()


def send_all(
    destination: Destination,
    partition: int,
    attempt: int,
    rows: Iterable[pa.RecordBatch | Segment],
    facts: Mapping[bytes, str] | None = None,
) -> int:
    """Send the rows of a partition; return how many the agents have accepted.

    Stops early if no more rows are wanted.

    `rows`: A segment's file is deleted when its rows have arrived.
    `facts`: For the agents, in the schema of all rows.
    """
    sender = PartitionSender(destination, partition, attempt)
    files: deque[tuple[Segment, int]] = deque()
    try:
        for each in rows:
            if isinstance(each, Segment):
                is_wanted = all(sender.send(part) for part in in_file(each, facts))
                files.append((each, sender.at))
                # The writer waits for this, and mustn't have to wait for its next file.
                while len(files) > _AHEAD:
                    sent, end = files.popleft()
                    sender.settle(end)
                    sent.delete()
            elif each.num_rows:
                told = each if facts is None else each.replace_schema_metadata(facts)
                is_wanted = sender.send(told)
            else:
                continue
            if not is_wanted:
                break
        taken = sender.close()
        for sent, _ in files:
            sent.delete()
        return taken
    finally:
        sender.abort()


def check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Reject ``columns=`` that the rows don't have."""
    for column in columns:
        if column not in known:
            raise SchemaError(
                f"the rows have no column {column!r}; they have {', '.join(map(repr, known))}."
                f"{did_you_mean(column, known)}"
            )


class _Line:
    """The connection to one agent."""

    def __init__(self, client: ReceiverClient, header: dict[str, Any]) -> None:
        self.client, self._header = client, header
        self.pending = 0
        self.has_ended = False
        self.accepted = Ranges()
        self._writer: Any = None
        self._answers: Any = None
        self._sees_files = True
        self.unanswered: deque[tuple[int, pa.RecordBatch | Located]] = deque()

    def begin(self) -> list[list[int]]:
        answer = self.client.begin(self._header, _BEGIN_SECONDS)
        self.pending, self.has_ended = answer["pending"], answer["ended"]
        ranges: list[list[int]] = answer["ranges"]
        return ranges

    def send(self, first: int, rows: pa.RecordBatch | Located) -> list[tuple[int, Any]]:
        """Send rows; return earlier rows that were rejected."""
        if self._writer is None:
            schema = rows.batch.schema if isinstance(rows, Located) else rows.schema
            self._writer, self._answers = self.client.put(self._header, schema)
        self._write(first, rows)
        self.pending += rows.num_rows
        return self._hear(_AHEAD)

    def _write(self, first: int, rows: pa.RecordBatch | Located) -> None:
        batch, told = rows, json.dumps(first)
        if isinstance(rows, Located):
            batch = rows.batch
            if self._sees_files:
                batch, told = batch.slice(0, 0), json.dumps(rows.told(first))
        self._writer.write_with_metadata(batch, told.encode())
        self.unanswered.append((first, rows))

    def waits_for(self, stop: int) -> bool:
        """Return whether rows before a position haven't been acknowledged."""
        return any(first < stop for first, _ in self.unanswered)

    def hear_before(self, stop: int) -> list[tuple[int, Any]]:
        """Wait until all rows before a position are acknowledged; return rejected ones."""
        refused = []
        while self.waits_for(stop):
            refused += self._hear(len(self.unanswered) - 1)
        return refused

    def settle(self) -> None:
        """Wait until the rows of the partition that the agent has are read."""
        self.has_ended = self.client.settle(self._header)["ended"]

    def finish(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.done_writing()
            writer.close()
        self.client.close()

    def abort(self) -> None:
        # A writer that isn't closed waits for the agent in whatever thread it is freed, by the
        # garbage collector perhaps.
        if self._writer is not None:
            with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                self._writer.close()
        self.client.close()

    def _hear(self, ahead: int) -> list[tuple[int, Any]]:
        refused = []
        while len(self.unanswered) > ahead:
            buffer = self._answers.read()
            if buffer is None:  # ended with an error, which closing raises
                self._writer.close()
                raise ConnectionError(f"{self.client.address} ended the stream without an answer")
            answer = json.loads(buffer.to_pybytes())
            first, batch = self.unanswered.popleft()
            if answer.get("unseen"):  # it is on another host
                self._sees_files = False
                self._write(first, batch)
                continue
            self.pending = answer["pending"] + sum(part.num_rows for _, part in self.unanswered)
            self.has_ended = self.has_ended or answer["ended"]
            if answer["ended"]:
                refused.append((first, batch))
            else:
                self.accepted.add(first, first + batch.num_rows)
        return refused
