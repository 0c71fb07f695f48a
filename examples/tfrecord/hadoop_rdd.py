"""TFRecord files as an RDD of bytes, through Hadoop's input format.

For jobs that have always read this way; new ones read ``spark.read.format("tfrecord")``.

Run: ``python hadoop_rdd.py FOLDER``
"""

from __future__ import annotations

import sys

from gridflow.tfrecord import configure, parse_example

INPUT_FORMAT = "io.gridflow.tfrecord.hadoop.TFRecordInputFormat"


def label_of(pair):
    return int(parse_example(bytes(pair[0])).features["label"][0])


def count_labels(spark, folder):
    records = spark.sparkContext.newAPIHadoopFile(
        folder,
        INPUT_FORMAT,
        "org.apache.hadoop.io.BytesWritable",
        "org.apache.hadoop.io.NullWritable",
    )
    return dict(records.map(label_of).countByValue())


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = configure(SparkSession.builder.appName("labels")).getOrCreate()
    print(count_labels(session, sys.argv[1]))
    session.stop()
