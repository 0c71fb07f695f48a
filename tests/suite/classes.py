"""Spark's Java classes, loaded and checked once: ``python tests/suite/classes.py ARCHIVE``.

Half of what a young Java process computes is loading the same thousands of classes. The tests start
some hundred; an archive of classes (Java's class data sharing) halves what each costs. One that
doesn't fit, after another Java or Spark was installed, is ignored by Java.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: Where ``make classes`` puts it.
ARCHIVE = Path(__file__).parents[2] / ".cache" / "classes.jsa"
#: Java processes of the tests live for seconds or minutes: the second compiler, and threads for the
#: collection of garbage, cost them half of their time and bring nothing.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Java would tell on standard output of each process that an archive isn't for, as spark-submit's.
_QUIETLY = "-Xlog:disable -Xlog:all=error:stderr"


def options():
    """Return the options of the tests' Java processes."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} {_QUIETLY}" if ARCHIVE.exists() else QUICK


def make(archive):
    """Let Spark do what the tests do, and keep the classes it has loaded by its end."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JDK_JAVA_OPTIONS"] = f"{QUICK} {_QUIETLY} -XX:ArchiveClassesAtExit={partial}"
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import pandas_udf

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    rows = session.range(0, 1000, 1, 2).selectExpr("id", "id % 7 AS k", "array(id, id) AS a")
    rows.cache().groupBy("k").count().orderBy("k").collect()
    rows.mapInArrow(lambda batches: batches, rows.schema, barrier=True).collect()
    rows.select(pandas_udf(lambda x: x + 1, "long")("id")).toPandas()
    session.createDataFrame(rows.limit(5).toPandas()).randomSplit([0.5, 0.5])[0].show()
    session.sparkContext.parallelize(range(4), 2).barrier().mapPartitions(list).collect()
    java = session.sparkContext._gateway.proc
    session.stop()
    java.stdin.close()
    java.wait()
    partial.replace(archive)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
