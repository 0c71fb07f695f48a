"""An old program's rows as columns, in which they are sent and stored, and back.

Rows of a DataFrame are its columns. Columns can't tell what else a row may be, such as a tuple from
a list: rows of other RDDs are one column of pickled objects, and a note in the schema says so.
"""

from __future__ import annotations

import itertools
import math
import pickle
import time
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Approximate size of a batch of rows; with a slow source, batches are sent sooner.
BATCH_BYTES: Final = 512 << 10
MOST_ROWS: Final = 8192
_FLUSH_SECONDS: Final = 0.1
#: How many rows are made between two looks at the clock.
_LOOK_ROWS: Final = 16
_NAME: Final = "row"
_PICKLED: Final = {b"gridflow.rows": b"pickled"}
#: Rows, or their results, as one column of pickled objects.
OBJECTS: Final = pa.schema([pa.field(_NAME, pa.binary(), nullable=False, metadata=_PICKLED)])


def batches(
    rows: Iterable[Any], most: int = BATCH_BYTES, *, is_prompt: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches of about so many bytes; if prompt, sooner where they come slowly."""
    seconds = _FLUSH_SECONDS if is_prompt else math.inf
    found: list[bytes] = []
    size, began = 0, time.monotonic()
    for row in rows:
        found.append(pickled(row))
        size += len(found[-1])
        looks = not len(found) % _LOOK_ROWS
        if size >= most or (looks and time.monotonic() - began > seconds):
            yield batch_of(found)
            found, size, began = [], 0, time.monotonic()
    if found:
        yield batch_of(found)


def batch_of(pickles: list[bytes]) -> pa.RecordBatch:
    """Return pickled objects as the rows of a batch."""
    return pa.RecordBatch.from_arrays([pa.array(pickles, pa.binary())], schema=OBJECTS)


def pickled(row: Any) -> bytes:
    try:
        return pickle.dumps(row, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(row))  # a class that is defined in the program


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    """Return rows as Python objects: those that were pickled, or as Spark would have made them."""
    if batch.schema.field(0).metadata == _PICKLED:
        return objects(batch.column(0))
    from pyspark.sql.types import _create_row

    columns = [_values(column) for column in batch.columns]
    names = batch.schema.names
    return [_create_row(names, values) for values in zip(*columns, strict=True)]


def objects(column: pa.Array) -> list[Any]:
    """Return the objects that were pickled into a column."""
    # Those who send rows or answers have the job's certificate.
    return [pickle.loads(each.as_buffer()) for each in column]  # noqa: S301


def _values(column: pa.Array) -> list[Any]:
    """Return a column's Python values; arrays of numbers are converted all at once."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or column.null_count:
        return _items(column) if not is_list else column.to_pylist()
    offsets, flat = column.offsets.to_numpy(), column.flatten()
    width = int(offsets[1] - offsets[0]) if len(column) else 0
    if width and _are_numbers(flat) and (np.diff(offsets) == width).all():
        even: list[Any] = flat.to_numpy().reshape(-1, width).tolist()
        return even
    items, first = _items(flat), int(offsets[0])
    ends = (offsets - first).tolist()
    return [items[a:b] for a, b in itertools.pairwise(ends)]


def _items(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy().tolist() if _are_numbers(column) else column.to_pylist()
    return found


def _are_numbers(column: pa.Array) -> bool:
    kind = column.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not column.null_count
