"""What tasks do that push rows into a running job, or ask it for answers."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow.errors import InvalidArgument, SchemaError
from gridflow.feed.push.asker import Asker
from gridflow.feed.push.attempts import Attempt
from gridflow.feed.push.sender import send_all
from gridflow.feed.sources.arrays import to_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gridflow.feed.push.sender import Destination

_ROWS_PER_BATCH: Final = 4096


def push(destination: Destination, batches: Iterable[pa.RecordBatch]) -> int:
    """Push a partition's rows from its task; return how many the agents have taken."""
    partition, attempt = _place()
    return send_all(destination, partition, attempt, batches)


def ask(
    destination: Destination,
    batches: Iterable[pa.RecordBatch],
    sent: Sequence[str],
    wanted: pa.Schema,
    timeout: float,
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows with their answers, from its task."""
    asker: Asker | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if asker is None:  # a partition without rows asks nobody
                asker = Asker(destination, *_place(), timeout)
            yield asker.answered(batch, sent, wanted)
        if asker is not None:
            asker.finish()
    finally:
        if asker is not None:
            asker.close()


def _place() -> tuple[int, int]:
    """Return the partition of this task, and a number that later attempts exceed."""
    attempt = Attempt.of_this_task()
    if attempt is None:
        raise AssertionError("rows are pushed from Spark tasks")
    return attempt.partition, attempt.number


def record_batches(
    rows: Iterable[Any], columns: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield rows of an RDD as record batches.

    Raises
    ------
    SchemaError
        A row isn't one of these columns, or has no names; a column has values that don't go
        together.
    """
    iterator = iter(rows)
    while part := list(itertools.islice(iterator, _ROWS_PER_BATCH)):
        names = columns if columns is not None else _names_of(part[0])
        values = [_values_of(row, names) for row in part]
        named = dict(zip(names, map(_together, zip(*values, strict=True)), strict=True))
        try:
            table = to_table(named, "stream")
        except (pa.ArrowException, InvalidArgument, ValueError) as error:
            raise SchemaError(f"rows of the RDD can't become columns: {error}") from error
        yield from table.combine_chunks().to_batches()


def _names_of(row: Any) -> tuple[str, ...]:
    names = tuple(row) if isinstance(row, dict) else getattr(row, "__fields__", None)
    if not names:
        raise SchemaError(
            f"rows of the RDD have no names for their columns ({type(row).__name__}). Give them: "
            "feed(rdd, columns=['x', 'y'])."
        )
    return tuple(names)


def _values_of(row: Any, names: tuple[str, ...]) -> Sequence[Any]:
    if isinstance(row, dict) or hasattr(row, "__fields__"):
        missing = [name for name in names if name not in row]
        if missing:
            raise SchemaError(f"a row of the RDD has no value for {missing[0]!r}: {row!r}"[:300])
        return [row[name] for name in names]
    if len(names) == 1 and not (isinstance(row, tuple | list) and len(row) == 1):
        return (row,)
    if not isinstance(row, tuple | list) or len(row) != len(names):
        number = len(row) if isinstance(row, tuple | list) else 1
        raise SchemaError(
            f"a row of the RDD has {number} values, and there are {len(names)} columns: "
            f"{', '.join(names)}."
        )
    return row


def _together(values: Sequence[Any]) -> Any:
    """Return the values of a column as an array, or as a list of what numpy doesn't hold."""
    first = values[0]
    if hasattr(first, "toArray"):  # a vector of Spark's
        return np.stack([value.toArray() for value in values])
    if isinstance(first, str | bytes | bytearray):
        return np.array([bytes(v) if isinstance(v, bytearray) else v for v in values], object)
    try:
        return np.asarray(values)
    except ValueError as error:
        raise SchemaError(f"values of a column have different shapes: {error}") from error
