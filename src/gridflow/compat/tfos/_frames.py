"""RDDs that are a DataFrame's rows: ``df.rdd``, and what functions make of it.

To make an RDD of a DataFrame, Spark's JVM pickles each row, number by number, and Python makes
objects of it, which are pickled again on their way. Here the columns come to Python as Arrow has
them. Those of ``df.rdd`` go on to the node as they are, and become rows where the program takes
them; where a function stands in between (``df.rdd.map(…)``), they become rows for it. They are the
same rows, in the same order, for columns of the types below; of other types they come as Spark
makes them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow.compat.tfos import _feeding
from gridflow.feed.sources import packing
from gridflow.feed.sources.names import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

#: Where an RDD keeps the DataFrame that it was made of.
_FRAME: Final = "_gridflow_frame"
_PLAIN: Final = frozenset(
    {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string"}
)


def remember_frames() -> None:
    """Let each ``df.rdd`` know its DataFrame from now on."""
    from pyspark.sql.classic.dataframe import DataFrame

    made = vars(DataFrame).get("rdd")
    make = getattr(made, "func", None)  # of a cached_property; else all rows come as Spark's
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
class Rows:
    """What an RDD is made of.

    Attributes
    ----------
    frame : DataFrame
    function : callable or None
        Takes the number of a partition and its rows, as those of ``mapPartitionsWithIndex`` do.
    """

    frame: DataFrame
    function: Callable[[int, Iterable[Any]], Iterable[Any]] | None


def of_frame(rdd: Any) -> Rows | None:
    """Return the DataFrame that an RDD is made of, if its rows can come as columns."""
    from pyspark.core.rdd import PipelinedRDD

    function, root = None, rdd
    if isinstance(rdd, PipelinedRDD):
        function = rdd.func  # all that Python does to the rows of the last one that isn't such
        while isinstance(root, PipelinedRDD) and (root is rdd or not _is_special(root)):
            root = root.prev
    frame: DataFrame | None = getattr(root, _FRAME, None)
    if frame is None or any(_is_special(each) for each in (rdd, root)):
        return None
    fields = frame.schema.fields
    names = {field.name for field in fields}
    can_travel = len(names) == len(fields) > 0 and all(_is_plain(f.dataType) for f in fields)
    return Rows(frame, function) if can_travel else None


def _is_special(rdd: Any) -> bool:
    """Return whether an RDD is more than how it is made: it was kept, or wants its own tasks."""
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


def feed(rows: Rows, send: Callable[..., Any]) -> None:
    """Run a Spark job that sends an RDD's rows.

    Parameters
    ----------
    rows : Rows
    send : callable
        Sends a partition, in a task: rows, or what it gets and how to cut that (`_feeding.Cut`).
    """
    from pyspark.sql import functions as f

    names, function = rows.frame.columns, rows.function
    # Under names without dots, by which mapInArrow would look for fields.
    columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(names)]
    packed = packing.packed_frame(rows.frame.select(columns))

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        if function is None:
            send(batches, lambda found, first: messages(found, first, names))
        else:
            task = TaskContext.get()
            assert task is not None
            pieces = (part for _, part in _pieces(batches, 0))
            made = itertools.chain.from_iterable(_rows(part, names) for part in pieces)
            send(function(task.partitionId(), made))
        return iter(())

    packed.mapInArrow(work, "nothing long").collect()


def messages(
    batches: Iterable[pa.RecordBatch], first: int, names: list[str]
) -> Iterator[tuple[bytes, int]]:
    """Yield a partition's rows as messages, from one on, and how many are in each."""
    for at, part in _pieces(batches, first):
        span = _feeding.SPAN.pack(at, len(part))
        content = _written(part.rename_columns(names))
        yield b"".join((_feeding.COLUMNS, span, content)), len(part)


def _pieces(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a partition's rows from one on in pieces of bounded size, with each one's place."""
    passed = 0
    for batch in batches:
        begin = max(0, first - passed)
        if begin < len(batch):
            plain = packing.unpacked_batch(batch)
            a_row = max(1, batch.nbytes // len(batch))
            size = max(1, min(_feeding.MOST_ROWS, _feeding.CHUNK_BYTES // a_row))
            for at in range(begin, len(batch), size):
                yield passed + at, plain.slice(at, size)
        passed += len(batch)


def _written(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def read(content: memoryview) -> list[Any]:
    """Return the rows of a message."""
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        batch = reader.read_next_batch()
    return _rows(batch, batch.schema.names)


def _rows(batch: pa.RecordBatch, names: list[str]) -> list[Any]:
    """Return rows as Spark would have made them."""
    from pyspark.sql.types import _create_row

    columns = [_values(column) for column in batch.columns]
    return [_create_row(names, values) for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """Return what Python has for a column; arrays of numbers all at once."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or column.null_count:
        return _items(column) if not is_list else column.to_pylist()
    offsets = column.offsets.to_numpy()
    items, first = _items(column.flatten()), int(offsets[0])
    ends = (offsets - first).tolist()
    return [items[a:b] for a, b in itertools.pairwise(ends)]


def _items(column: pa.Array) -> list[Any]:
    kind = column.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    found: list[Any] = (
        column.to_numpy().tolist() if is_number and not column.null_count else column.to_pylist()
    )
    return found
