"""TFRecord files with Spark, Hadoop, tf.data and Arrow.

In Spark the jar does the work: ``spark.read.format("tfrecord")`` once `configure` has put it into a
session's builder. What is here besides it is for small data, without Spark: records and tables in
Python, schemas, and the description that ``tf.io.parse_example`` wants.
"""

from __future__ import annotations

from gridflow.tfrecord.convert import infer_schema, read_table, write_table
from gridflow.tfrecord.example import Example, parse_example, serialize_example
from gridflow.tfrecord.framing import CorruptRecord, read_records, write_records
from gridflow.tfrecord.jars import configure, jar
from gridflow.tfrecord.spec import feature_spec, sequence_feature_spec

__all__ = [
    "CorruptRecord",
    "Example",
    "configure",
    "feature_spec",
    "infer_schema",
    "jar",
    "parse_example",
    "read_records",
    "read_table",
    "sequence_feature_spec",
    "serialize_example",
    "write_records",
    "write_table",
]
