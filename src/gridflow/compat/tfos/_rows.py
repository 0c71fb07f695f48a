"""An old program's rows as columns, in which they are sent and stored, and back.

Rows of a DataFrame are its columns. Columns can't tell what else a row may be, such as a tuple from
a list: rows of other RDDs are one column of pickled objects, and a note in the schema says so.
"""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np
import pyarrow as pa

from gridflow._feed.ingest import packing
from gridflow._feed.ingest.base import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

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


# RDDs made from a DataFrame: ``df.rdd``, and functions applied to it.
#
# To turn a DataFrame into an RDD, Spark's JVM pickles each row, value by value. Python unpickles
# it, and pickles it again to send it. Here, Python receives the columns in Arrow format. Those of
# ``df.rdd`` are sent to the node unchanged and become rows when the program reads them. With a
# function in between (``df.rdd.map(…)``), they become rows for that function. The rows and their
# order are the same as Spark's. DataFrames with columns of other types than those below use
# Spark's own way.

#: The attribute of an RDD that refers to its DataFrame.
_FRAME: Final = "_gridflow_frame"
_PLAIN: Final = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"}
)


def remember_frames() -> None:
    """Make each ``df.rdd`` remember its DataFrame from now on."""
    from pyspark.sql.classic.dataframe import DataFrame

    made = vars(DataFrame).get("rdd")
    make = getattr(made, "func", None)  # a cached_property; otherwise all rows come Spark's way
    if make is None or hasattr(make, _FRAME):
        return

    @functools.wraps(make)
    def rdd(self: Any) -> Any:
        found = make(self)
        setattr(found, _FRAME, self)
        return found

    setattr(rdd, _FRAME, True)
    made.func = rdd  # type: ignore[union-attr]


@dataclass(frozen=True)
class RddRows:
    """An RDD as a DataFrame and a function.

    `function`: Takes a partition's index and rows, as with ``mapPartitionsWithIndex``.
    """

    frame: DataFrame
    function: Callable[[int, Iterable[Any]], Iterable[Any]] | None


def of_frame(rdd: Any) -> RddRows | None:
    """Return the DataFrame and function behind an RDD, if its rows can travel as columns."""
    from pyspark.core.rdd import PipelinedRDD

    function, root = None, rdd
    if isinstance(rdd, PipelinedRDD):
        function = rdd.func  # all Python functions since the last RDD that isn't pipelined
        while isinstance(root, PipelinedRDD) and (root is rdd or not _is_special(root)):
            root = root.prev
    frame: DataFrame | None = getattr(root, _FRAME, None)
    if frame is None or any(_is_special(each) for each in (rdd, root)):
        return None
    fields = frame.schema.fields
    names = {field.name for field in fields}
    can_travel = len(names) == len(fields) > 0 and all(_is_plain(f.dataType) for f in fields)
    return RddRows(frame, function) if can_travel else None


def _is_special(rdd: Any) -> bool:
    """Return whether an RDD is cached or checkpointed, or has special tasks."""
    return bool(
        rdd.is_cached
        or rdd.is_checkpointed
        or rdd.has_resource_profile
        or getattr(rdd, "is_barrier", False)
    )


def _is_plain(kind: Any) -> bool:
    from pyspark.sql.types import ArrayType

    element = kind.elementType if isinstance(kind, ArrayType) else kind
    return element.simpleString() in _PLAIN


def feed(rows: RddRows, send: Callable[[Iterable[pa.RecordBatch]], Any]) -> None:
    """Run a Spark job that sends an RDD's rows.

    `send`: Called in a task to send the rows of a partition.
    """
    from pyspark.sql import functions as f

    names, function = rows.frame.columns, rows.function
    # Rename the columns: mapInArrow would take a dot in a name for a struct field.
    columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(names)]
    packed = packing.packed_frame(rows.frame.select(columns))

    def work(coming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        found = pieces(coming, names)
        if function is not None:
            task = TaskContext.get()
            assert task is not None
            made = itertools.chain.from_iterable(map(rows_of, found))
            found = batches(function(task.partitionId(), made))
        send(found)
        return iter(())

    packed.mapInArrow(work, "nothing long").collect()


def pieces(batches: Iterable[pa.RecordBatch], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield a partition's rows in pieces of bounded size, with the names of their columns."""
    for batch in batches:
        if not len(batch):
            continue
        named = packing.unpacked_batch(batch).rename_columns(names)
        a_row = max(1, batch.nbytes // len(batch))
        size = max(1, min(MOST_ROWS, BATCH_BYTES // a_row))
        for at in range(0, len(batch), size):
            yield named.slice(at, size)
