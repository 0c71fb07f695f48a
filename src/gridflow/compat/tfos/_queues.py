"""A node's queues, ``ctx.mgr``: rows that Spark pushes, results for Spark, and the program's own.

Pushed rows come by way of the node's agent, like all rows of `gridflow.JobHandle.feed`, and lie in
mapped files. They become Python objects when they are read, a few at a time: the numbers of a row
take up to eight times as much memory as objects.

They are sent and stored as columns. Rows of a DataFrame are its columns. Columns can't tell what
else a row may be, such as a tuple from a list: rows of other RDDs are one column of pickled
objects, and a note in the schema says so.
"""

from __future__ import annotations

import functools
import itertools
import math
import pickle
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np
import pyarrow as pa

from gridflow._feed.ingest import packing
from gridflow._feed.ingest.base import quoted
from gridflow._feed.store.segment import ASKED, size_of
from gridflow.compat.tfos import marker
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from gridflow._training.streaming import SentRows


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


#: Marks the end of a feed in a queue, as in the original.
END: Final = None
#: The queue of results.
OUTPUT: Final = "output"
#: Queues that Spark doesn't feed.
_OWN: Final = frozenset({OUTPUT, "error", "control"})
#: Minimum number of bytes to turn into rows at a time, because each conversion has a fixed cost.
_RUN_BYTES: Final = 32 << 10
#: How often feeders are told that rows of a large segment are read.
_TELL_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.05


class _Segment:
    """The rows of a segment, some of which may have been read."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch, self.left = batch, batch.num_rows
        self._run = max(1, _RUN_BYTES * batch.num_rows // max(size_of(batch), 1))
        self._made: list[Any] = []
        self.is_asked = ASKED in (batch.schema.metadata or {})

    def take(self, most: int) -> list[Any]:
        """Return the next rows, at most `most`."""
        if not self._made:
            start = self._batch.num_rows - self.left
            self._made = rows_of(self._batch.slice(start, max(most, self._run)))
        part, self._made = self._made[:most], self._made[most:]
        self.left -= len(part)
        return part


class FedQueue:
    """Rows that Spark pushes to this node.

    It has the methods of `multiprocessing.JoinableQueue` that programs use, and `take`, which
    returns many rows at a time. What the program itself puts here comes before Spark's rows.
    """

    def __init__(self, rows: SentRows, results: ResultQueue) -> None:
        self._rows, self._results = rows, results
        self.address = rows.address
        self._own: deque[Any] = deque()
        self._segment: _Segment | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._taken, self._tell_at = 0, 0.0

    def take(self, most: int, timeout: float | None = None) -> tuple[list[Any], bool, Any]:
        """Wait for up to `most` rows, or for a marker.

        Returns
        -------
        (rows, is_mark, mark)
            Either rows, or no rows and a marker or `END`.

        Raises
        ------
        queue.Empty
            If nothing arrived in time.
        """
        with self._lock:
            give_up = None if timeout is None else time.monotonic() + timeout
            while not self._own and self._segment is None and not self._is_at_end:
                left = None if give_up is None else max(give_up - time.monotonic(), 0.0)
                found = self._rows.next(lambda: self._closed or bool(self._own), left)
                if found is not None:
                    self._open(*found)
                elif left == 0:
                    raise queue.Empty
            if self._closed:
                return [], True, END
            if self._own:
                item = self._own.popleft()
                return ([], True, item) if is_mark(item) else ([item], False, None)
            if self._segment is None:
                return [], True, END
            rows = self._segment.take(most)
            self._count(len(rows), self._segment)
            return rows, False, None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next row, marker or end.

        Raises
        ------
        queue.Empty
            If there is none, or none arrived in time.
        """
        rows, is_a_mark, mark = self.take(1, timeout if block else 0.0)
        return mark if is_a_mark else rows[0]

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append a row, a marker or the end."""
        del block, timeout  # there is always room
        self._own.append(item)
        self._rows.wake()

    def task_done(self) -> None:
        """Do nothing: items count as done once they are read."""

    def join(self) -> None:
        """Wait until everything has been read."""
        while not self.empty():
            time.sleep(_LOOK_SECONDS)

    def empty(self) -> bool:
        """Return whether the queue is empty."""
        return not self.qsize()

    def qsize(self) -> int:
        """Return the number of rows and markers."""
        return 0 if self._closed else self._rows.arrived - self._taken + len(self._own)

    def refuse(self) -> None:
        """Let Spark send no more rows to this node; those that are here stay."""
        self._rows.refuse()

    def close(self) -> None:
        """Discard all current and future items; readers get `END`."""
        self._closed = True
        self._rows.refuse()
        self._rows.wake()

    @property
    def _is_at_end(self) -> bool:
        # In this order: what came before the end is known with it.
        return self._closed or (self._rows.has_ended and not self._rows.has_rows)

    def _open(self, number: int, batch: pa.RecordBatch) -> None:
        self._segment = _Segment(batch)
        if self._segment.is_asked:
            self._results.expect(self._rows, number, batch.num_rows)

    def _count(self, rows: int, segment: _Segment) -> None:
        """Tell feeders what is read: not each time, as programs may read row by row."""
        self._taken += rows
        now = time.monotonic()
        if segment.left and now < self._tell_at:
            return
        self._tell_at = now + _TELL_SECONDS
        self._rows.taken(self._taken)
        if not segment.left:
            self._segment = None
            if segment.is_asked:  # it is a whole partition
                self._own.appendleft(marker.EndPartition())


class ResultQueue(queue.Queue[Any]):
    """Results for Spark, one for each row that asks for one; others stay here."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Lock()
        self._asked: deque[_Asked] = deque()
        #: Rows of the last partition that was answered.
        self._answered = 0

    def expect(self, rows: SentRows, segment: int, count: int) -> None:
        """Expect results for the rows of a segment, after all that were expected before."""
        with self._changed:
            self._asked.append(_Asked(rows, segment, count))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append a result."""
        del block, timeout  # there is always room
        self.put_all([item])

    def put_all(self, results: Iterable[Any]) -> None:
        """Append results.

        Raises
        ------
        GridflowError
            There are more than rows that ask for them.
        """
        left = deque(results)
        with self._changed:
            is_asked = bool(self._asked or self._answered)
            more = len(left) - sum(asked.open for asked in self._asked)
            if is_asked and more > 0:  # none is sent: it isn't known which ones are right
                count = self._asked[-1].count if self._asked else self._answered
                raise GridflowError(
                    f"the program returned {count + more} results for the {count} rows of a "
                    "partition; batch_results() needs exactly one for each row."
                )
            while left and self._asked:
                asked = self._asked[0]
                asked.results += [left.popleft() for _ in range(min(asked.open, len(left)))]
                if not asked.open:
                    self._answered = asked.count
                    self._asked.popleft().send()
        for each in left:
            super().put(each)


class _Asked:
    """The results of a segment's rows, so far."""

    def __init__(self, rows: SentRows, segment: int, count: int) -> None:
        self._rows, self._segment, self.count = rows, segment, count
        self.results: list[Any] = []

    @property
    def open(self) -> int:
        """How many rows have no result yet."""
        return self.count - len(self.results)

    def send(self) -> None:
        """Answer the segment."""
        pickles = [pickled(each) for each in self.results]
        self._rows.answer(self._segment, batch_of(pickles))


def is_mark(item: Any) -> bool:
    """Return whether an item of a queue is no row."""
    return item is END or isinstance(item, marker.Marker)


class _Shown(str):
    """A string whose ``str()`` includes quotes, as with the original manager's proxies.

    Programs compare ``str(mgr.get("state"))`` with ``"'running'"``.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return repr(str.__str__(self))


class NodeQueues:
    """The ``ctx.mgr`` of programs, without a separate process.

    Parameters
    ----------
    names : sequence of str
        Names of the queues.
    open_rows : callable, optional
        Opens the pushed rows of a name; default: Spark feeds no queue of this node.
    """

    def __init__(
        self, names: Sequence[str], open_rows: Callable[[str], SentRows] | None = None
    ) -> None:
        results = ResultQueue()
        self._fed: dict[str, FedQueue] = {}
        if open_rows is not None:
            self._fed = {n: FedQueue(open_rows(n), results) for n in names if n not in _OWN}
        self._queues: dict[str, Any] = {
            name: self._fed.get(name) or (results if name == OUTPUT else queue.Queue())
            for name in names
        }
        self._values: dict[str, Any] = {}

    @property
    def address(self) -> str | None:
        """``host:port`` to which Spark's rows are sent; None if there are none."""
        return next((each.address for each in self._fed.values()), None)

    def get_queue(self, name: str) -> Any:
        """Return the queue of that name, or None."""
        return self._queues.get(name)

    def get(self, key: str) -> Any:
        """Return a value."""
        value = self._values[key]
        return _Shown(value) if type(value) is str else value

    def set(self, key: str, value: Any) -> None:
        """Set a value; the states ``terminating`` and ``stopped`` end feeding."""
        self._values[key] = value
        if key == "state" and value in {"terminating", "stopped"}:
            for each in self._fed.values():
                each.refuse()

    def end_feeds(self) -> None:
        """Put `END` into every queue that a program may read and Spark doesn't feed."""
        for name, each in self._queues.items():
            if name not in {OUTPUT, "error"} and name not in self._fed:
                each.put(END)
