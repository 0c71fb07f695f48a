"""Arrays of numbers on their way from Spark's JVM to Python: as bytes, not element by element.

Spark writes each element of an array into Arrow's format by a call of its own, but a binary value
by one copy. The function ``gridflow.pack`` of gridflow's jar makes bytes of an array; `unpacked`
makes Arrow's arrays of them again, without touching the numbers. Where the jar can't be had (Spark
Connect, a session that forbids it) columns stay as they are: slower, but the same rows.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.ingest.names import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "can_pack",
    "pack",
    "packed_frame",
    "see_added_jars",
    "unpacked",
    "unpacked_batch",
]

_LOG: Final = logging.getLogger(__name__)

#: The first field of a packed array; behind it comes Spark's name of the elements' type.
_PREFIX: Final = "__gridflow_packed_"
_NUMBERS: Final = {
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}

_lock = threading.Lock()
#: By the session's own name: each micro-batch of a stream has another object of the same one.
_known: dict[str, bool] = {}


def can_pack(spark: SparkSession) -> bool:
    """Return whether a session has ``gridflow.pack``; it gets the jar if it hasn't yet."""
    if not hasattr(spark, "_jsparkSession"):  # Connect: its server's jars aren't ours to change
        return False
    with _lock:
        name = str(spark._jsparkSession.sessionUUID())  # noqa: SLF001 (there is no public way)
        if name not in _known:
            _known[name] = _with_function(spark)
        if _known[name]:
            see_added_jars(spark)
        return _known[name]


def see_added_jars(spark: SparkSession) -> None:
    """Let this thread's queries see the classes of jars that the session was given since it began.

    ``ADD JAR`` shows them to the thread alone that runs it. What Spark's driver compiles in another
    one can't name them: it fails, with pages of log, and Spark goes on without compiled code.
    """
    java = spark._jvm.java.lang.Thread  # type: ignore[union-attr]  # noqa: SLF001 (there is no public way)
    loader = spark._jsparkSession.sharedState().jarClassLoader()  # noqa: SLF001
    java.currentThread().setContextClassLoader(loader)


def _with_function(spark: SparkSession) -> bool:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from gridflow.errors import MissingDependency
    from gridflow.tfrecord.jars import CATALOG, CATALOG_CLASS, jar

    is_new = spark.conf.get(CATALOG, None) is None
    try:
        if is_new:
            spark.sql(f"ADD JAR '{jar()}'")
            spark.conf.set(CATALOG, CATALOG_CLASS)
        # Analysed in the driver: no task runs.
        return spark.sql("SELECT gridflow.pack(array(1.0F)) AS x").columns == ["x"]
    except (Py4JError, PySparkException, MissingDependency) as error:
        _LOG.debug("arrays are read element by element: %s", error)
        if is_new:
            spark.conf.unset(CATALOG)
        return False


def pack(column: Column | str) -> Column:
    """Return a column's arrays of numbers as bytes; a column of another type as it is."""
    from pyspark.sql import functions as f

    return f.call_function("gridflow.pack", f.col(column) if isinstance(column, str) else column)


def packed_frame(frame: DataFrame) -> DataFrame:
    """Return the frame with its arrays of numbers packed, where its session can."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType

    def is_packed(kind: Any) -> bool:
        return isinstance(kind, ArrayType) and kind.elementType.simpleString() in _NUMBERS

    fields = frame.schema.fields
    if not any(is_packed(field.dataType) for field in fields) or not can_pack(frame.sparkSession):
        return frame
    columns = []
    for field in fields:
        column = f.col(quoted(field.name))
        columns.append(pack(column).alias(field.name) if is_packed(field.dataType) else column)
    return frame.select(columns)


def unpacked_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose packed columns are arrays of numbers again."""
    if not any(_element(field.type) for field in batch.schema):
        return batch
    return pa.RecordBatch.from_arrays(
        [unpacked(column) for column in batch.columns], names=batch.schema.names
    )


def unpacked(column: pa.Array) -> pa.Array:
    """Return a packed column as lists of numbers that share its memory; another as it is."""
    kind = _element(column.type)
    if kind is None:
        return column
    width = kind.bit_width // 8
    values = column.field(0)
    large = pa.types.is_large_binary(values.type)
    _, offsets, numbers = values.buffers()
    starts = np.frombuffer(offsets, np.int64 if large else np.int32)
    starts = starts[values.offset : values.offset + len(values) + 1] // width
    nulls = column.field(1)
    flat = pa.Array.from_buffers(kind, int(starts[-1]), [None, numbers])
    if nulls.null_count < len(nulls):
        flat = pa.array(np.asarray(flat), kind, mask=_mask(starts, nulls))
    lists: type[pa.ListArray | pa.LargeListArray] = pa.LargeListArray if large else pa.ListArray
    no_array = column.is_null() if column.null_count else None
    return lists.from_arrays(pa.array(starts), flat, mask=no_array)


def _element(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the elements of a packed array, None for any other column."""
    if not pa.types.is_struct(kind) or not kind.num_fields:
        return None
    name = kind.field(0).name
    return _NUMBERS.get(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def _mask(starts: np.ndarray, nulls: Sequence[Any]) -> np.ndarray:
    """Return which elements are null; ``nulls`` are bytes for the arrays that have any."""
    mask = np.zeros(int(starts[-1]), bool)
    for place, row in enumerate(nulls):
        if row.is_valid:
            mask[starts[place] : starts[place + 1]] = np.frombuffer(row.as_py(), np.uint8)
    return mask
