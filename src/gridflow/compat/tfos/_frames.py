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

import numpy as np
import pyarrow as pa

from gridflow._feed.ingest import packing
from gridflow._feed.ingest.names import quoted
from gridflow.compat.tfos import _chunks
from gridflow.compat.tfos._lists import number_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

#: The attribute of an RDD that refers to its DataFrame.
_FRAME: Final = "_gridflow_frame"
#: Minimum number of bytes to turn into rows at a time, because each conversion has a fixed cost.
_RUN_BYTES: Final = 32 << 10
#: From this length on, a `NumberList` is worth its overhead.
_LONG_LIST: Final = 128
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


def feed(rows: RddRows, send: Callable[..., Any]) -> None:
    """Run a Spark job that sends an RDD's rows.

    `send`: Called in a task to send a partition: takes rows, or batches and a `_chunks.Cut` for
        them.
    """
    from pyspark.sql import functions as f

    names, function = rows.frame.columns, rows.function
    # Rename the columns: mapInArrow would take a dot in a name for a struct field.
    columns = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(names)]
    packed = packing.packed_frame(rows.frame.select(columns))

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        if function is None:
            send(batches, lambda found, first: chunks(found, first, names))
        else:
            task = TaskContext.get()
            assert task is not None
            pieces = (part for _, part in _pieces(batches, 0))
            made = itertools.chain.from_iterable(_rows(part, names) for part in pieces)
            send(function(task.partitionId(), made))
        return iter(())

    packed.mapInArrow(work, "nothing long").collect()


def chunks(
    batches: Iterable[pa.RecordBatch], first: int, names: list[str]
) -> Iterator[_chunks.Chunk]:
    """Yield a partition's rows in chunks, starting at row `first`."""
    for at, part in _pieces(batches, first):
        named = part.rename_columns(names)
        measure = pa.MockOutputStream()
        _write(named, measure)
        write = functools.partial(_write_into, named)
        yield _chunks.Chunk(_chunks.COLUMNS, at, len(part), measure.size(), write)


def _pieces(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield a partition's rows from `first` on in pieces of bounded size, each with its index."""
    passed = 0
    for batch in batches:
        begin = max(0, first - passed)
        if begin < len(batch):
            plain = packing.unpacked_batch(batch)
            a_row = max(1, batch.nbytes // len(batch))
            size = max(1, min(_chunks.MOST_ROWS, _chunks.CHUNK_BYTES // a_row))
            for at in range(begin, len(batch), size):
                yield passed + at, plain.slice(at, size)
        passed += len(batch)


def _write(batch: pa.RecordBatch, sink: Any) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _write_into(batch: pa.RecordBatch, memory: memoryview) -> None:
    _write(batch, pa.FixedSizeBufferWriter(pa.py_buffer(memory)))


class Columns:
    """The rows of a message, kept as columns until they are read.

    `content`: Kept without a copy.
    """

    def __init__(self, content: memoryview) -> None:
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            self._batch = reader.read_next_batch()
        self.run = max(1, _RUN_BYTES * len(self._batch) // max(len(content), 1))

    def made(self, begin: int, end: int) -> list[Any]:
        """Return some of the rows."""
        return _rows(self._batch.slice(begin, end - begin), self._batch.schema.names)


def _rows(batch: pa.RecordBatch, names: list[str]) -> list[Any]:
    """Return the rows as Spark would have made them."""
    from pyspark.sql.types import _create_row

    columns = [_values(column) for column in batch.columns]
    return [_create_row(names, values) for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """Return a column's Python values; arrays of numbers are converted all at once."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or column.null_count:
        return _items(column) if not is_list else column.to_pylist()
    offsets, flat = column.offsets.to_numpy(), column.flatten()
    width = int(offsets[1] - offsets[0]) if len(column) else 0
    if width and _are_numbers(flat) and (np.diff(offsets) == width).all():
        even = flat.to_numpy().reshape(-1, width)
        return number_lists(even) if width >= _LONG_LIST else even.tolist()
    items, first = _items(flat), int(offsets[0])
    ends = (offsets - first).tolist()
    return [items[a:b] for a, b in itertools.pairwise(ends)]


def _items(column: pa.Array) -> list[Any]:
    found: list[Any] = column.to_numpy().tolist() if _are_numbers(column) else column.to_pylist()
    return found


def _are_numbers(column: pa.Array) -> bool:
    kind = column.type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not column.null_count
