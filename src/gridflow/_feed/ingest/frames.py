"""The source of rows on Spark: DataFrames, or data in the driver's memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._feed.ingest import dataframes, jvm_files, partitions
from gridflow._feed.ingest.base import RowSource
from gridflow._files.materialized import Materialized
from gridflow.errors import InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from gridflow._feed.ingest.dataframes import Tags
    from gridflow._feed.ingest.jvm_files import Segments
    from gridflow._feed.ingest.partitions import Repartition

#: Arrow types that Spark doesn't support, with the nearest supported type.
_NEAREST: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
#: Of Spark's decimals.
_MOST_DIGITS: Final = 38


class FrameSource(RowSource):
    """Datasets that Spark computes; the agents are the last stage.

    `data` (mapping of dataset name to rows): DataFrames, or data for
        `gridflow._feed.ingest.arrays.to_table`.
    `repartition` ({"auto", "always", "never"}): See `gridflow._feed.ingest.dataframes.stage_frame`.
    Raises `InvalidArgument`, `SchemaError`: As in `as_frames`.
    """

    def __init__(
        self, spark: SparkSession, data: Mapping[str, Any], repartition: Repartition
    ) -> None:
        self._repartition = repartition
        self._left_out: dict[str, dict[str, str]] = {}
        self._frames = as_frames(spark, data, self._left_out)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of all datasets, each once."""
        names = [
            column
            for name, frame in self._frames.items()
            for column in (*frame.columns, *self._left_out.get(name, ()))
        ]
        return tuple(dict.fromkeys(names))

    @property
    def left_out(self) -> dict[str, dict[str, str]]:
        """Columns that can't be fed, and why, by dataset."""
        return self._left_out

    def check(self, num_ranks: int, *, is_barrier: bool = False) -> None:
        """Reject what can't be fed to this number of ranks; record what is left out."""
        if self._frames:
            for name, reasons in dataframes.check(self._frames).items():
                self._left_out[name] = {**self._left_out.get(name, {}), **reasons}
        partitions.check_partitions(
            self._frames, num_ranks, self._repartition, is_barrier=is_barrier
        )

    def stage(
        self, num_ranks: int, kept: Collection[str] = (), spool_dir: str | None = None
    ) -> tuple[DataFrame, Tags | Segments]:
        """Return the DataFrame whose partitions are the ranks' rows, and the object for the agents.

        Spark jobs that the rows need before their last stage may run here.
        """
        frame, tags = dataframes.stage_frame(self._frames, num_ranks, self._repartition, kept)
        return jvm_files.written(frame, tags, spool_dir, is_final=True)


def as_frames(
    spark: SparkSession, data: Mapping[str, Any], left_out: dict[str, dict[str, str]]
) -> dict[str, DataFrame]:
    """Return each dataset as a DataFrame; record columns that can't be fed, with the reason.

    Raises `InvalidArgument`: A dataset has another type; the message says how to convert it.
    Raises `SchemaError`: A dataset has no rows, or a type that Spark doesn't support.
    """
    return {name: _as_frame(spark, rows, name, left_out) for name, rows in data.items()}


def _as_frame(
    spark: SparkSession, rows: Any, name: str, left_out: dict[str, dict[str, str]]
) -> DataFrame:
    from pyspark.sql import Column

    if isinstance(rows, Column):  # it claims to have any attribute
        raise InvalidArgument(f"dataset {name!r} is a Column. Pass a DataFrame: df.select('x').")
    if isinstance(rows, Materialized):
        rows.check()
        return rows.read(spark)
    if dataframes.is_dataframe(rows):
        if rows.isStreaming:
            raise InvalidArgument(
                f"dataset {name!r} is a streaming DataFrame, which never ends, but a run needs all "
                "rows of an epoch. Feed it to a running job: with distributor.start(function) as "
                "job: job.feed(rows). Or run on each of its batches: writeStream.foreachBatch."
            )
        frame, reasons = dataframes.readable(rows, name)
        if reasons:
            left_out[name] = reasons
        return frame
    if hasattr(rows, "to_spark"):  # pandas on Spark
        return rows.to_spark()  # type: ignore[no-any-return]
    if hasattr(rows, "mapPartitions"):
        raise InvalidArgument(
            f"dataset {name!r} is an RDD ({type(rows).__name__}). Convert it to a DataFrame with "
            "column names: rdd.toDF(['x', 'y'])."
        )
    if isinstance(rows, str | os.PathLike):
        raise InvalidArgument(
            f"dataset {name!r} is a path or a name, {os.fspath(rows)!r}. Read it: "
            "spark.read.parquet(…), spark.table(…)."
        )
    return _from_memory(spark, rows, name, left_out)


def _from_memory(
    spark: SparkSession, rows: Any, name: str, left_out: dict[str, dict[str, str]]
) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_schema

    from gridflow._feed.ingest import arrays

    try:
        table, reasons = arrays.feedable(rows, name)
    except arrays.UnknownKindError as error:
        raise InvalidArgument(f"{error} Or a Spark DataFrame.") from error
    if not table.num_rows:
        raise SchemaError(f"dataset {name!r} has no rows.")
    columns: dict[str, pa.ChunkedArray] = {}
    for field in table.schema:
        # One by one, so that the others are unaffected by a column that Spark can't take.
        try:
            columns[field.name] = table.column(field.name).cast(_nearest(field.type))
            from_arrow_schema(pa.schema([(field.name, columns[field.name].type)]))
        except (pa.ArrowException, PySparkException, ValueError) as error:
            columns.pop(field.name, None)
            reasons[field.name] = (
                f"column {field.name!r} of dataset {name!r} has the type {field.type}, and Spark "
                f"can't take it: {error}. Leave it out, or convert it first."
            )
    if reasons:
        if not columns or isinstance(rows, tuple):  # users who pass (x, y) need both
            raise SchemaError(" ".join(reasons.values()))
        left_out[name] = reasons
    table = pa.table(columns)
    try:
        # A timestamp without a time zone stays one, so it means the same number on every launcher.
        schema = from_arrow_schema(table.schema, prefer_timestamp_ntz=True)
        return spark.createDataFrame(table, schema)
    except (pa.ArrowException, PySparkException) as error:
        raise SchemaError(f"dataset {name!r} can't become a DataFrame: {error}") from error


def _nearest(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_nearest(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_nearest(kind.value_type))
    if pa.types.is_dictionary(kind):
        return _nearest(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_nearest(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nearest(kind.key_type), _nearest(kind.item_type))
    if isinstance(kind, pa.BaseExtensionType):
        return _nearest(kind.storage_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_decimal(kind) and kind.precision > _MOST_DIGITS:
        return pa.decimal128(_MOST_DIGITS, kind.scale)
    return _NEAREST.get(kind, kind)
