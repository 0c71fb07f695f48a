"""Sends the rows of a partition to one agent and returns its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import flight

from gridflow._feed.push.answers import conform
from gridflow._wire.receiver import ReceiverClient
from gridflow.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._feed.push.sender import Destination

__all__ = ["InferenceClient"]

_BEGIN_SECONDS: Final = 60.0


class InferenceClient:
    """A connection to the agent with the fewest waiting rows.

    `timeout`: Seconds within which a batch must be answered.
    """

    def __init__(
        self, destination: Destination, partition: int, attempt: int, timeout: float
    ) -> None:
        self._partition, self._at = partition, 0
        header = {
            "stream": destination.stream,
            # A failed attempt has already received answers: this one sends all rows again.
            "feed": f"{destination.feed}-{attempt}",
            "partition": partition,
            "attempt": attempt,
            "timeout": timeout,
        }
        # If all agents have the same number of waiting rows, partitions spread over them.
        order = range(partition, partition + len(destination.receivers))
        clients = [
            ReceiverClient(destination.receivers[n % len(order)], destination.identity)
            for n in order
        ]
        try:
            waiting = [client.begin(header, _BEGIN_SECONDS) for client in clients]
        except (flight.FlightUnavailableError, flight.FlightCancelledError) as error:
            raise DataError(
                "the job has ended, or one of its agents was lost: the result of infer() is "
                "computed while the job runs. Use it before stop(), or write it first."
            ) from error
        open_ones = [n for n, answer in enumerate(waiting) if not answer["ended"]]
        if not open_ones:
            raise DataError(
                "the job accepts no more rows: use the result of infer() before stop()."
            )
        chosen = min(open_ones, key=lambda n: waiting[n]["pending"])
        self._client = clients.pop(chosen)
        for client in clients:
            client.close()
        self._writer, self._answers = self._client.exchange(header)
        self._has_begun = False

    def answered(
        self, batch: pa.RecordBatch, sent: Sequence[str], wanted: pa.Schema
    ) -> pa.RecordBatch:
        """Return rows with the columns of their answers.

        `sent`: Columns that the function gets.
        `wanted`: The schema of the answers.
        Raises `DataError`: The number of answers differs from the number of rows; names the
            partition.
        """
        question = batch.select(list(sent))
        if not self._has_begun:
            self._writer.begin(question.schema)
            self._has_begun = True
        self._writer.write_with_metadata(question, str(self._at).encode())
        self._at += batch.num_rows
        answers = self._answers.read_chunk().data
        if answers.num_rows != batch.num_rows:
            raise DataError(
                f"partition {self._partition}: {batch.num_rows} rows were sent to the function, "
                f"and {answers.num_rows} came back."
            )
        columns = [*batch.columns, *conform(answers, wanted)]
        return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, *wanted.names])

    def finish(self) -> None:
        """Shut down cleanly."""
        self._writer.done_writing()
        self._writer.close()

    def close(self) -> None:
        """Close the connection immediately."""
        self._client.close()
