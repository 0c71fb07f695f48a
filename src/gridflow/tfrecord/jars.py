"""Where the jar is, and how a Spark session gets it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from gridflow.errors import MissingDependency

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    Builder = TypeVar("Builder", bound=SparkSession.Builder)

_NAME: Final = "gridflow-tfrecord.jar"
#: The catalog of the SQL functions ``gridflow.to_example`` and ``gridflow.from_example``.
CATALOG: Final = "spark.sql.catalog.gridflow"
CATALOG_CLASS: Final = "io.gridflow.tfrecord.spark.GridflowFunctions"


def jar() -> str:
    """Return the path of the jar with the data source ``tfrecord`` and the Hadoop formats.

    For ``spark-submit --jars``, ``spark.jars``, ``spark.addArtifact`` (Spark Connect), Hadoop's
    ``-libjars``.

    Raises
    ------
    MissingDependency
        If this is a source tree in which the jar has not been built.
    """
    package = Path(__file__).parent
    # A wheel carries the jar beside this file; in a source tree Maven leaves it in its own place.
    for place in (package / _NAME, package.parents[2] / "java" / "target" / _NAME):
        if place.is_file():
            return str(place)
    raise MissingDependency(f"{_NAME} is not built; run 'make jar' (it needs Maven and JDK 17).")


def configure(builder: Builder) -> Builder:
    """Give a session's builder the jar and the catalog of the SQL functions.

    ``spark.jars`` that the builder has already are kept.

    Examples
    --------
    >>> spark = configure(SparkSession.builder).getOrCreate()  # doctest: +SKIP
    >>> spark.read.format("tfrecord").load("/data/train")  # doctest: +SKIP
    """
    have = str(builder._options.get("spark.jars", ""))  # noqa: SLF001 -- there is no public way
    jars = [path for path in have.split(",") if path]
    if jar() not in jars:
        jars.append(jar())
    builder.config("spark.jars", ",".join(jars)).config(CATALOG, CATALOG_CLASS)
    return builder
