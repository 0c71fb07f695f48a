"""RDDs made from a DataFrame: ``df.rdd``, and functions applied to it.

To turn a DataFrame into an RDD, Spark's JVM pickles each row, value by value. Python unpickles it,
and pickles it again to send it. Here, Python receives the columns in Arrow format. Those of
``df.rdd`` are sent to the node unchanged and become rows when the program reads them. With a
function in between (``df.rdd.map(…)``), they become rows for that function. The rows and their
order are the same as Spark's. DataFrames with columns of other types than those below use Spark's
own way.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.ingest import packing
from gridflow._feed.ingest.names import quoted
from gridflow.compat.tfos import _rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

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

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        found = pieces(batches, names)
        if function is not None:
            task = TaskContext.get()
            assert task is not None
            made = itertools.chain.from_iterable(map(_rows.rows_of, found))
            found = _rows.batches(function(task.partitionId(), made))
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
        size = max(1, min(_rows.MOST_ROWS, _rows.BATCH_BYTES // a_row))
        for at in range(0, len(batch), size):
            yield named.slice(at, size)
