"""The halves of Spark's objects that live in the JVM. pyspark has no public way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession


def classes(spark: SparkSession | SparkContext) -> Any:
    """Return the JVM's packages and classes, as attributes."""
    return spark._jvm  # noqa: SLF001


def java_context(context: SparkContext) -> Any:
    """Return the ``JavaSparkContext``; None once it is stopped."""
    return context._jsc  # noqa: SLF001


def scala_context(context: SparkContext) -> Any:
    """Return the context of Spark itself."""
    return java_context(context).sc()


def java_session(spark: SparkSession) -> Any:
    """Return the session in the JVM; None over Spark Connect."""
    return getattr(spark, "_jsparkSession", None)


def java_frame(frame: DataFrame) -> Any:
    """Return the frame in the JVM; None over Spark Connect."""
    return getattr(frame, "_jdf", None)


def java_column(column: Column) -> Any:
    return column._jc  # noqa: SLF001
