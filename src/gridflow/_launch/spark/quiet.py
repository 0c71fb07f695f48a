"""Sessions whose driver logs errors alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING: Final = Path(__file__).with_name("quiet.properties")
#: Spark's own ``spark.log.level`` takes effect only after what it logs while it starts. The default
#: Java options leave ``spark.driver.extraJavaOptions`` to the user.
QUIET: Final = {
    "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.ui.showConsoleProgress": "false",
}


def quiet(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Let a session's driver log errors alone, and draw no progress bar for stages.

    For first steps and notebooks: Spark's warnings are hidden, too. It has no effect where another
    process starts the driver's JVM: under ``spark-submit``, and over Spark Connect.

    Parameters
    ----------
    builder : SparkSession.Builder

    Returns
    -------
    SparkSession.Builder
        The same one.

    Raises
    ------
    InvalidArgument
        It isn't a builder, but a session or its settings, say.

    Examples
    --------
    >>> from gridflow.util import quiet
    >>> spark = quiet(SparkSession.builder.master("local[2]")).getOrCreate()  # doctest: +SKIP
    """
    if not hasattr(builder, "config"):
        raise InvalidArgument(
            f"quiet() takes SparkSession.builder, before getOrCreate(); got a "
            f"{type(builder).__name__}."
        )
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    return builder
