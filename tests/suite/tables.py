"""Formats of tables beside Spark's own: Delta and Iceberg."""

from __future__ import annotations

from pathlib import Path

from suite import maven

_FOLDER = Path(__file__).parents[2] / ".cache" / "tables"
_JARS = {"delta": "delta-spark_*.jar", "iceberg": "iceberg-spark-runtime-*.jar"}


def fetch(folder=_FOLDER):
    """Copy each format's jars into a folder, by Maven."""
    pom = Path(__file__).parent / "table_jars" / "pom.xml"
    return maven.fetch(pom, folder, _JARS)


def jars_of_spark():
    """Return what ``spark.jars`` needs for both."""
    return ",".join(str(jar) for jar in sorted(fetch().glob("*/*.jar")))


if __name__ == "__main__":  # the set-up
    fetch()
