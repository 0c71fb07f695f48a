"""Code of tasks that push rows into a running job, or ask it for answers."""

from __future__ import annotations

import contextlib
import itertools
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.ingest.arrays import has_masks, integer_lost_in, to_table
from gridflow._feed.push.answers import InferenceClient
from gridflow._feed.push.exactly_once import PartitionAttempt
from gridflow._feed.push.sender import send_all
from gridflow._feed.store.segment import LEFT_OUT
from gridflow.errors import InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gridflow._feed.ingest.base import RankRows
    from gridflow._feed.push.sender import Destination

_ROWS_PER_BATCH: Final = 4096


def push(
    destination: Destination,
    rows: RankRows,
    batches: Iterable[pa.RecordBatch],
    left_out: Mapping[str, str],
) -> int:
    """Push a partition's rows from its task; return how many the agents have taken.

    The batches' schema says which columns can't be fed, and why; agents report requested ones.
    """
    facts = {LEFT_OUT: json.dumps(dict(left_out))} if left_out else None
    with contextlib.closing(rows.batches(batches)) as own:
        return send_all(destination, *_place(), (each for _, each in own), facts)


def push_batches(destination: Destination, batches: Iterable[pa.RecordBatch]) -> int:
    """Push a partition's record batches; return how many rows the agents have taken."""
    return send_all(destination, *_place(), batches)


def ask(
    destination: Destination,
    batches: Iterable[pa.RecordBatch],
    sent: Sequence[str],
    wanted: pa.Schema,
    timeout: float,
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows with their answers, from its task."""
    asker: InferenceClient | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if asker is None:  # a partition without rows asks no agent
                asker = InferenceClient(destination, *_place(), timeout)
            yield asker.answered(batch, sent, wanted)
        if asker is not None:
            asker.finish()
    finally:
        if asker is not None:
            asker.close()


def _place() -> tuple[int, int]:
    """Return the partition of this task, and a number that later attempts exceed."""
    attempt = PartitionAttempt.of_this_task()
    if attempt is None:
        raise AssertionError("rows are pushed from Spark tasks")
    return attempt.partition, attempt.number


def record_batches(
    rows: Iterable[Any], columns: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    """Yield rows of an RDD as record batches.

    Raises `SchemaError`: A row doesn't have these columns, or has no names; or values of a column
        don't match.
    """
    iterator = iter(rows)
    while part := list(itertools.islice(iterator, _ROWS_PER_BATCH)):
        names = columns if columns is not None else _names_of(part[0])
        values = [_values_of(row, names) for row in part]
        named = dict(zip(names, map(_together, zip(*values, strict=True)), strict=True))
        try:
            table = to_table(named, "stream")
        except (pa.ArrowException, InvalidArgument, ValueError) as error:
            raise SchemaError(f"can't convert rows of the RDD to columns: {error}") from error
        yield from _with_lists(table).combine_chunks().to_batches()


def _names_of(row: Any) -> tuple[str, ...]:
    names = tuple(row) if isinstance(row, dict) else getattr(row, "__fields__", None)
    if not names:
        raise SchemaError(
            f"rows of the RDD have no column names ({type(row).__name__}). Give them: "
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
            f"a row of the RDD has {number} values, but there are {len(names)} columns: "
            f"{', '.join(names)}."
        )
    return row


def _together(values: Sequence[Any]) -> Any:
    """Return the values of a column as an array, of objects if numpy has no type for them.

    Raises `SchemaError`: The values don't match.
    """
    first = next((value for value in values if value is not None), None)
    if hasattr(first, "toArray"):  # a Spark vector, as in DataFrames
        return _objects([v if v is None else v.toArray().astype(np.float32) for v in values])
    if hasattr(first, "__fields__"):
        dicts = [v.asDict(True) if hasattr(v, "__fields__") else v for v in values]
        return _objects([_in_utc(value) for value in dicts])
    if isinstance(first, str | bytes | bytearray):
        return _objects([bytes(v) if isinstance(v, bytearray) else v for v in values])
    if _holds_times(first):
        return _objects([_in_utc(value) for value in values])
    if has_masks(values):
        return np.ma.stack(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        if not all(isinstance(v, list | tuple | np.ndarray) for v in values if v is not None):
            raise SchemaError(f"values of a column have different shapes: {error}") from error
        return _objects(list(values))  # arrays of different lengths
    if array.dtype.kind in "US" and (other := _no_text(values)) is not None:
        raise SchemaError(
            f"values of a column have different types: {other!r} is a {type(other).__name__}, but "
            "others are strings. Cast them, so that all rows have the same type."
        )
    if (lossy := integer_lost_in(array, values)) is not None:
        raise SchemaError(f"values of a column have different types: {lossy}")
    return array


def _holds_times(value: Any) -> bool:
    while isinstance(value, list | tuple) and value:
        value = next((item for item in value if item is not None), None)
    return isinstance(value, datetime | dict)


def _in_utc(value: Any) -> Any:
    """Return a value whose naive times, at any depth, have a time zone.

    Spark passes timestamps to Python without a time zone, in the local time of the worker process
    (``pyspark.sql.types.TimestampType``). Naive times of pandas mean UTC.
    """
    if isinstance(value, dict):
        return {name: _in_utc(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_utc(item) for item in value]
    if isinstance(value, datetime) and not (value.tzinfo is None and hasattr(value, "to_numpy")):
        return value.astimezone(UTC)
    return value


def _no_text(values: Any) -> Any:
    """Return a value, at any depth, that isn't a string; None if all are."""
    for value in values:
        if isinstance(value, list | tuple | np.ndarray):
            value = _no_text(value)  # noqa: PLW2901 (what is looked at)
        if value is not None and not isinstance(value, str | bytes):
            return value
    return None


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    for place, value in enumerate(values):  # numpy would otherwise look into lists
        array[place] = value
    return array


def _with_lists(table: pa.Table) -> pa.Table:
    """Return a table with variable-length lists, as all tables of a stream need the same schema."""
    for place, field in enumerate(table.schema):
        if pa.types.is_fixed_size_list(field.type):
            lists = table.column(place).cast(pa.list_(field.type.value_type))
            table = table.set_column(place, field.name, lists)
    return table
