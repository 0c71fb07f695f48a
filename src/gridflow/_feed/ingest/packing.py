"""Sends arrays of numbers from Spark's JVM to Python as bytes instead of element by element.

Spark writes each element of an array to Arrow with a separate call, but a binary value with one
copy. The function ``gridflow.pack`` of gridflow's jar converts an array to bytes; `unpacked`
converts them back to Arrow arrays without touching the numbers. Without the jar (Spark Connect, a
session that forbids it) columns are unchanged: the same rows, but slower.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.ingest.base import quoted
from gridflow._spec import jvm

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

#: The first field of a packed array, followed by Spark's name of the element type.
_PREFIX: Final = "__gridflow_packed_"
_NUMBERS: Final = {
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}

_lock = threading.Lock()
#: By the session's id: each micro-batch of a stream has a different object for the same session.
_known: dict[str, bool] = {}


def can_pack(spark: SparkSession) -> bool:
    """Return whether a session has ``gridflow.pack``; add the jar if necessary."""
    if jvm.java_session(spark) is None:  # Connect: the server's jars can't be changed
        return False
    with _lock:
        name = str(jvm.java_session(spark).sessionUUID())
        if name not in _known:
            _known[name] = _with_function(spark)
        if _known[name]:
            see_added_jars(spark)
        return _known[name]


def see_added_jars(spark: SparkSession) -> None:
    """Make the classes of jars added to the session visible to this thread's queries.

    ``ADD JAR`` makes them visible only in the thread that runs it. In other threads, Spark's driver
    can't compile code that names them: it fails with pages of logs, and Spark continues without
    compiled code.
    """
    java = jvm.classes(spark).java.lang.Thread
    loader = jvm.java_session(spark).sharedState().jarClassLoader()
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
        # Only analysed in the driver: no task runs.
        return spark.sql("SELECT gridflow.pack(array(1.0F)) AS x").columns == ["x"]
    except (Py4JError, PySparkException, MissingDependency) as error:
        _LOG.debug("arrays are read element by element: %s", error)
        if is_new:
            spark.conf.unset(CATALOG)
        return False


def pack(column: Column | str) -> Column:
    """Return a column's arrays of numbers as bytes; other columns unchanged."""
    from pyspark.sql import functions as f

    return f.call_function("gridflow.pack", f.col(column) if isinstance(column, str) else column)


def packed_frame(frame: DataFrame) -> DataFrame:
    """Return the frame with its arrays of numbers packed, if the session supports it."""
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
    """Return a batch with packed columns unpacked."""
    if not any(_element(field.type) for field in batch.schema):
        return batch
    return pa.RecordBatch.from_arrays(
        [unpacked(column) for column in batch.columns], names=batch.schema.names
    )


def unpacked(column: pa.Array) -> pa.Array:
    """Return a packed column as lists that share its memory; other columns unchanged."""
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
    """Return the element type of a packed array, or None for other columns."""
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
