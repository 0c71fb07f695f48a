"""Run by a test: a Spark Connect server that learns of the data source from an artifact."""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.addArtifact(sys.argv[1])
spark.conf.set("spark.sql.catalog.gridflow", "io.gridflow.tfrecord.spark.GridflowFunctions")
with tempfile.TemporaryDirectory() as folder:
    rows = spark.range(100).selectExpr("id", "array(cast(id as float)) x")
    rows.write.format("tfrecord").mode("overwrite").save(folder + "/x")
    frame = spark.read.format("tfrecord").load(folder + "/x")
    again = frame.selectExpr("gridflow.to_example(struct(id)) e").selectExpr(
        "gridflow.from_example(e, cast(null as struct<id: bigint>)).id id"
    )
    assert {row.id for row in again.collect()} == set(range(100))
    print(f"rows {frame.count()}, columns {frame.columns}, functions ok")
spark.stop()
