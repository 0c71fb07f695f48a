"""A function's answers to rows, as Arrow columns; and who asks: a partition's rows to one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from pyarrow import flight

from gridflow._wire.receiver import ReceiverClient
from gridflow.errors import DataError, GridflowError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gridflow._feed.push.sender import Destination

__all__ = ["COLUMN", "InferenceClient", "conform", "to_batch", "write"]


#: The column of answers without names.
COLUMN: Final = "prediction"


def to_batch(values: Any) -> pa.RecordBatch:
    """Return the answers to a batch as columns.

    Raises `GridflowError`: They have different lengths, or can't be converted to columns.
    """
    named = values if isinstance(values, Mapping) else {COLUMN: values}
    columns = {str(name): _column(str(name), each) for name, each in named.items()}
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(column)}" for name, column in columns.items())
        raise GridflowError(f"ctx.results() got columns of different lengths: {lengths}.")
    return pa.RecordBatch.from_pydict(columns)


def write(path: Path, parts: Sequence[Any]) -> None:
    """Write the answers to one segment, given in parts."""
    batch = pa.concat_batches(parts) if len(parts) > 1 else parts[0]
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    partial.rename(path)


def conform(answers: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    """Return the declared columns, in the declared types.

    Raises `GridflowError`: A column is missing or has another type.
    """
    found = []
    for field in schema:
        if field.name not in answers.schema.names:
            raise GridflowError(
                f"infer() declares the column {field.name!r}, but ctx.results() got "
                f"{', '.join(map(repr, answers.schema.names))}. Declare the results: infer(df, "
                "schema='name type, …')."
            )
        column = answers.column(field.name)
        try:
            found.append(_fitting(column, field.type))
        except pa.ArrowException as error:
            raise GridflowError(
                f"ctx.results() got {field.name!r} as {column.type}, but infer() declares "
                f"{field.type}: {error}. Declare the type: infer(df, schema='{field.name} type')."
            ) from error
    return found


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to another type, also between numbers and arrays of one number."""
    is_list = pa.types.is_fixed_size_list(column.type)
    wants_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_list and not wants_list and column.type.list_size == 1:
        column = column.flatten()
    elif wants_list and not is_list and not pa.types.is_list(column.type):
        column = pa.FixedSizeListArray.from_arrays(column, 1)
    return column.cast(kind)


def _column(name: str, values: Any) -> pa.Array:
    if isinstance(values, list | tuple) and any(isinstance(v, str | bytes) for v in values):
        return pa.array(values)
    try:
        array = np.asarray(values)
        if array.dtype == object or array.dtype.kind in "US":
            return pa.array(array.tolist())
        if array.ndim == 0:
            raise GridflowError(
                f"ctx.results() got a single value for {name!r} instead of one per row."
            )
        column = pa.array(array.reshape(-1))
        for size in reversed(array.shape[1:]):
            column = pa.FixedSizeListArray.from_arrays(column, size)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise GridflowError(f"ctx.results() can't make a column of {name!r}: {error}") from error
    return column


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
