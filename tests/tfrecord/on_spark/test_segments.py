"""Rows for training are written by the jar, by ways into Spark that have no name."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from gridflow._feed.ingest.dataframes import stage_frame
from gridflow._feed.ingest.jvm_files import Segments, written
from gridflow._launch.spark.bodies import taking


def by_files(frame):
    """Return the rows of a DataFrame of one partition."""
    stage, rows = written(*stage_frame({"train": frame}, 1), None, is_final=False)
    assert isinstance(rows, Segments)

    def read(batches):
        for _, segment in rows.batches(batches):
            segment.delete()
            for batch in segment.batches:
                yield pa.RecordBatch.from_pydict({"row": [repr(row) for row in batch.to_pylist()]})

    return [row.row for row in stage.mapInArrow(taking(rows, read), "row string").collect()]


def by_socket(frame):
    def read(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"row": [repr(row) for row in batch.to_pylist()]})

    return [row.row for row in frame.mapInArrow(read, "row string").collect()]


@pytest.mark.interface
@pytest.mark.parametrize("source", ["rows", "cached numbers", "cached", "parquet", "adaptive"])
def test_rows_are_the_same_by_files(spark, tmp_path, source):
    columns = ["id", "float(id) / 7 AS x", "int(id % 5) AS y", "id % 2 = 0 AS z"]
    if source != "cached numbers":
        columns += [
            "array(float(id), 0.5F) AS pair",
            "IF(id % 3 = 0, NULL, string(id % 4)) AS word",
            "named_struct('a', id, 'b', array(id)) AS fields",
            "CAST(id AS decimal(9, 2)) AS amount",
            "timestamp_seconds(id) AS at",
        ]
    frame = spark.range(0, 3000, 1, 1).selectExpr(*columns)
    if source.startswith("cached"):
        frame = frame.cache()
        frame.count()
    elif source == "parquet":
        frame.write.parquet(str(tmp_path / "rows"))
        frame = spark.read.parquet(str(tmp_path / "rows"))
    elif source == "adaptive":  # a query that Spark plans as it runs
        frame = frame.groupBy("id").agg(*(f.max(name).alias(name) for name in frame.columns[1:]))
        frame = frame.repartition(1).sortWithinPartitions("id")
    assert by_files(frame) == by_socket(frame)
    frame.unpersist()
