"""The driver's side of Spark jobs that push rows into a running job, or ask it for answers."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from gridflow._feed.ingest import dataframes, jvm_files
from gridflow._feed.ingest.frames import as_frames
from gridflow._feed.push.sender import check_columns
from gridflow._feed.selection import refuse_left_out
from gridflow._launch.spark import errors, feeders
from gridflow._launch.spark.bodies import taking
from gridflow._launch.spark.session import (
    arrow_type,
    cancel,
    forget_tag,
    make_thread,
    tag_this_thread,
)
from gridflow.errors import DataError, InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from gridflow._feed.push.sender import Destination

_LOOK_SECONDS: Final = 0.1
#: Time for feeders to end by themselves once the job takes no more rows.
_IN_ORDER_SECONDS: Final = 2.0


def feed(
    spark: SparkSession,
    destination: Destination,
    rows: Any,
    columns: Sequence[str] | None,
    has_ended: Callable[[float], bool],
    kept: Collection[str] = (),
) -> int:
    """Push a DataFrame, an RDD or data in the driver; see `Launcher.feed`.

    Columns in `kept` are pushed whatever their type, as the agents handle them.
    """
    if hasattr(rows, "mapPartitionsWithIndex") and not dataframes.is_dataframe(rows):
        return _feed_rdd(spark, destination, rows, columns, has_ended)
    known: dict[str, dict[str, str]] = {}
    (frame,) = as_frames(spark, {destination.stream: rows}, known).values()
    reasons = known.get(destination.stream, {})
    if columns is not None:
        refuse_left_out([name for name in columns if name not in frame.columns], reasons)
        check_columns(columns, frame.columns)
        frame, reasons = frame[list(columns)], {}
    reasons |= dataframes.check({destination.stream: frame}).get(destination.stream, {})
    left_out = {column: why for column, why in reasons.items() if column not in kept}
    frame, tags = dataframes.plain_frame(destination.stream, frame, kept)

    def work() -> int:
        stage, own = jvm_files.written(frame, tags, None, is_final=False)

        def push(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            taken = feeders.push(destination, own, batches, left_out)
            yield pa.RecordBatch.from_pydict({"rows": pa.array([taken], pa.int64())})

        pushed = stage.mapInArrow(taking(own, push), "rows long")
        return sum(row.rows for row in pushed.collect())

    return _in_job(spark, destination, work, has_ended)


def _feed_rdd(
    spark: SparkSession,
    destination: Destination,
    rdd: Any,
    columns: Sequence[str] | None,
    has_ended: Callable[[float], bool],
) -> int:
    """Push an RDD of Rows, or of tuples whose columns get these names."""
    names = None if columns is None else tuple(columns)

    def push(rows: Iterable[Any]) -> Iterator[int]:
        yield feeders.push_batches(destination, feeders.record_batches(rows, names))

    pushed = rdd.mapPartitions(push)
    return _in_job(spark, destination, lambda: sum(pushed.collect()), has_ended)


def infer(destination: Destination, rows: Any, schema: str, timeout: float) -> DataFrame:
    """Return a DataFrame whose tasks ask the agents; see `Launcher.infer`."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    is_frame = dataframes.is_dataframe(rows)
    if not is_frame or rows.isStreaming:
        what = "a streaming DataFrame" if is_frame else type(rows).__name__
        raise InvalidArgument(
            f"infer() needs a DataFrame that isn't streaming; got {what}. For a stream, use it "
            "on each batch: "
            "writeStream.foreachBatch(lambda df, _: cluster.infer(df).write…)."
        )
    _, unknown = dataframes.readable(rows, destination.stream)
    if unknown:  # what is returned has all columns of the rows
        raise SchemaError(" ".join(unknown.values()))
    try:
        answers = cast("StructType", StructType.fromDDL(schema))
    except PySparkException as error:
        raise InvalidArgument(
            f"schema= must be columns and types such as 'prediction float, z array<float>'; "
            f"got {schema!r}: {error}"
        ) from error
    twice = [name for name in answers.names if name in rows.columns]
    if twice:
        raise InvalidArgument(
            f"the DataFrame already has a column {twice[0]!r}. Give the answers another name: "
            f"infer(df, schema='other_{twice[0]} type'), with ctx.results({{'other_{twice[0]}': …"
            "})."
        )
    reasons = dataframes.check({destination.stream: rows}).get(destination.stream, {})
    sent = tuple(name for name in rows.columns if name not in reasons)
    wanted = pa.schema([pa.field(each.name, arrow_type(each.dataType)) for each in answers.fields])

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from feeders.ask(destination, batches, sent, wanted, timeout)

    asked: DataFrame = rows.mapInArrow(ask, StructType([*rows.schema.fields, *answers.fields]))
    return asked


def feed_stream(
    rows: DataFrame,
    feed_batch: Callable[[DataFrame, str], None],
    covered: str | None,
    options: Mapping[str, Any],
    has_ended: Callable[[float], bool],
) -> None:
    """Push a streaming DataFrame; see `Launcher.feed_stream`."""
    failed: list[BaseException] = []
    is_busy = threading.Event()

    def take(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        known, _, last = (covered or "").rpartition("/")
        if known == query and number <= int(last):
            return  # the driver ended after the checkpoint, but before Spark recorded the batch
        is_busy.set()
        try:
            feed_batch(batch, f"{query}/{number}")
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            is_busy.clear()

    writer = rows.writeStream.foreachBatch(take).option(
        "checkpointLocation", options["checkpointLocation"]
    )
    trigger = options.get("trigger")
    query = (writer if trigger is None else writer.trigger(**trigger)).start()
    try:
        # A micro-batch ends by itself once the job takes no more rows: it isn't interrupted.
        while query.isActive and (not has_ended(_LOOK_SECONDS) or is_busy.is_set()):
            time.sleep(_LOOK_SECONDS)
    finally:
        query.stop()
    if failed and not isinstance(failed[0], InterruptedError):
        raise failed[0]
    error = query.exception()
    if error is not None and not failed:
        raise DataError(f"the stream failed: {errors.words_of(str(error))}")


def _in_job(
    spark: SparkSession,
    destination: Destination,
    work: Callable[[], int],
    has_ended: Callable[[float], bool],
) -> int:
    """Run Spark jobs, and translate their failures for the user."""
    tag = f"gridflow-feed-{destination.feed}"
    tag_this_thread(spark, tag)
    is_done, was_cancelled = threading.Event(), threading.Event()

    def end_with_the_job() -> None:
        while not has_ended(_LOOK_SECONDS):
            if is_done.is_set():
                return
        # Feeders learn it with their next rows, which may take long to compute.
        while not is_done.wait(_IN_ORDER_SECONDS):
            was_cancelled.set()
            cancel(spark, tag)

    make_thread(spark, end_with_the_job, f"{tag}-end").start()
    try:
        return work()
    except (KeyboardInterrupt, SystemExit):
        cancel(spark, tag)
        raise
    except Exception as error:
        if was_cancelled.is_set():
            raise InterruptedError("the job took no more rows") from error
        raise DataError(f"can't push rows: {errors.words_of(str(error))}") from error
    finally:
        is_done.set()
        forget_tag(spark, tag)
