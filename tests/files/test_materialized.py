"""Rows that are written to files once: used again while nothing changed, refused when it did."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.dataset
import pytest

import gridflow
from gridflow import (
    DataError,
    InvalidArgument,
    LocalLauncher,
    TensorflowDistributor,
    TrainingFailed,
)
from gridflow._feed.ingest.frames import as_frames
from gridflow._launch.spark import materializing, plans

pytestmark = pytest.mark.slow
QUIET = {"logs": "none", "progress": False}


@pytest.fixture
def table(spark, tmp_path):
    """Give the folder of a Parquet table."""
    folder = str(tmp_path / "table")
    spark.range(100).selectExpr("cast(id as float) x", "id y").write.parquet(folder)
    return folder


def test_rows_are_written_once_in_balanced_files_and_again_when_the_source_changes(
    spark, table, tmp_path
):
    path = str(tmp_path / "written")

    def query():
        return spark.read.parquet(table).where("y < 90").selectExpr("x", "y + 1 as y")

    # Where Spark doesn't list files with their sizes, they are asked for one by one.
    relation = query()._jdf.queryExecution().analyzed().collectLeaves().apply(0).relation()
    listed, _ = plans._files_of(spark, relation)
    asked = [plans._status(spark, name) for name in relation.location().inputFiles()]
    assert [each[1:] for each in sorted(asked)] == [each[1:] for each in listed]
    first = gridflow.materialize(query(), path, files=4)
    assert (first.is_new, first.rows, first.format) == (True, 90, "parquet")
    assert len(first.files) == 4
    assert all(20 <= file["rows"] <= 25 for file in first.files)
    read = pyarrow.dataset.dataset(str(first)).to_table()
    assert sorted(read["y"].to_pylist()) == [*range(1, 91)]
    again = gridflow.materialize(query(), path, files=4)
    assert not again.is_new
    assert again == first
    assert first.read(spark).count() == 90
    assert json.loads(Path(path, "_gridflow.json").read_text())["rows"] == 90
    # Another name, another condition, another file of the table: other rows.
    named = query().withColumnRenamed("y", "z")
    assert gridflow.materialize(named, path, rows_per_file=50).is_new
    assert not Path(first).exists()
    assert len(os.listdir(path)) == 2
    narrow = gridflow.materialize(query().where("y < 5"), path, files=1)
    assert (narrow.is_new, narrow.rows) == (True, 4)
    spark.range(3).selectExpr("cast(id as float) x", "id y").write.mode("append").parquet(table)
    more = gridflow.materialize(query().where("y < 5"), path, files=1)
    assert (more.is_new, more.rows) == (True, 7)
    with pytest.raises(DataError, match=r"have changed: expected .* 4 rows .* found .* 7 rows"):
        narrow.check()
    next(Path(more).glob("*.parquet")).unlink()  # somebody tidies up
    assert gridflow.materialize(query().where("y < 5"), path, files=1).is_new


def test_columns_beyond_those_that_spark_shows_count(spark, tmp_path):
    path = str(tmp_path / "wide")
    wide = spark.range(3).selectExpr(*(f"id + {n} as c{n}" for n in range(40)))
    other = spark.range(3).selectExpr(*(f"id + {n + (n == 39)} as c{n}" for n in range(40)))
    assert gridflow.materialize(wide, path, files=1).is_new
    assert not gridflow.materialize(wide, path, files=1).is_new
    assert gridflow.materialize(other, path, files=1).is_new


def test_what_a_plan_does_not_tell_needs_a_version(spark, table, tmp_path):
    from pyspark.sql import functions as F

    path = str(tmp_path / "written")
    twice = F.udf(lambda x: 2 * x, "float")
    rows = spark.read.parquet(table)
    for frame, words in (
        (rows.withColumn("r", F.rand()), "may differ each time"),
        (rows.select(twice("x")), "your own functions"),
        (rows.mapInArrow(lambda batches: batches, rows.schema), "your own functions"),
        (spark.createDataFrame([(1, 2)], "a int, b int"), "doesn't report"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            gridflow.materialize(frame, path)
    sample = rows.withColumn("r", F.rand()).where("r < 0.5")
    first = gridflow.materialize(sample, path, version="a", files=1)
    assert not gridflow.materialize(sample, path, version="a", files=1).is_new
    assert gridflow.materialize(sample, path, version="b", files=1).is_new
    assert "version 'a'" in first.version
    with pytest.raises(InvalidArgument, match="not both"):
        gridflow.materialize(rows, path, files=1, rows_per_file=1)
    with pytest.raises(InvalidArgument, match="needs a DataFrame"):
        gridflow.materialize([1], path)


def test_a_session_without_the_jar_is_told_what_it_lacks():
    words = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: tfrecord."
    refusal = materializing._refusal(words, "/x")
    assert isinstance(refusal, InvalidArgument)
    assert "tfrecord.configure(" in str(refusal)
    assert isinstance(materializing._refusal("disk full", "/x"), DataError)


def fit(ctx, rows, *, fail=False):
    """Train on materialized rows, with checkpoints."""
    import keras

    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if fail and batch == 2:
                raise RuntimeError("on purpose")

    dataset = ctx.parquet_dataset(rows, batch_size=8, features=[["x"]], label="y")
    model.fit(dataset, verbose=0, callbacks=[*ctx.callbacks(), Fail()])


def test_training_reads_them_and_refuses_to_go_on_with_others(spark, table, tmp_path, by_value):
    path, checkpoints = str(tmp_path / "written"), str(tmp_path / "checkpoints")

    def run(rows, **options):
        distributor = TensorflowDistributor(
            1, launcher=LocalLauncher(), checkpoint_dir=checkpoints, checkpoint_every=1, **QUIET
        )
        return distributor.run(fit, rows, **options)

    query = spark.read.parquet(table)
    rows = gridflow.materialize(query, path, files=2)
    with pytest.raises(TrainingFailed, match="on purpose"):
        run(rows, fail=True)
    spark.range(3).selectExpr("cast(id as float) x", "id y").write.mode("append").parquet(table)
    new = gridflow.materialize(spark.read.parquet(table), path, files=2)
    with pytest.raises(DataError, match=r"have changed: .* 100 rows .* 103 rows"):
        run(rows)
    with pytest.raises(DataError, match=r"Then: .* 100 rows .*now: .* 103 rows"):
        run(new)
    (frame,) = as_frames(spark, {"train": new}, {}).values()  # as run(data=new) does on Spark
    assert frame.count() == 103
    with pytest.raises(DataError, match="have changed"):
        as_frames(spark, {"train": rows}, {})
