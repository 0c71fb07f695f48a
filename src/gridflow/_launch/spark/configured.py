"""The configuration of a Spark session, for scripts and notebooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._launch.spark.session import check_session, executors_of
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The number of parameter servers that a session is meant for. Spark itself ignores it.
NUM_PS: Final = "spark.gridflow.num.ps"
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,")
#: Spark's default number of requested executors.
_DEFAULT_INSTANCES: Final = 2


def num_executors(spark: SparkSession) -> int:
    """Return how many executors the session is configured with.

    Parameters
    ----------
    spark : SparkSession

    Returns
    -------
    int
        ``spark.dynamicAllocation.maxExecutors`` with dynamic allocation, else
        ``spark.executor.instances``. For masters without these settings: 1 for ``local[…]``, n for
        ``local-cluster[n,…]``, and on a standalone cluster as many as have registered so far.

    Raises
    ------
    InvalidArgument
        Dynamic allocation is on and has no upper bound, or `spark` isn't a session.

    Examples
    --------
    >>> from gridflow.util import num_executors, num_param_servers
    >>> workers = num_executors(spark) - num_param_servers(spark)  # doctest: +SKIP
    """
    master = _setting(spark, "spark.master") or ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return 1
    if _setting(spark, "spark.dynamicAllocation.enabled") == "true":
        bound = _setting(spark, "spark.dynamicAllocation.maxExecutors")
        if bound is None or not bound.isdigit() or int(bound) == (1 << 31) - 1:
            raise InvalidArgument(
                "dynamic allocation has no upper bound, so the number of executors is unknown. "
                "Set spark.dynamicAllocation.maxExecutors."
            )
        return int(bound)
    cluster = _LOCAL_CLUSTER.match(master)
    if cluster:
        return int(cluster[1])
    instances = _setting(spark, "spark.executor.instances")
    if instances is not None:
        return int(instances)
    if master.startswith("spark://"):
        return executors_of(spark.sparkContext)
    return _DEFAULT_INSTANCES


def num_param_servers(spark: SparkSession) -> int:
    """Return how many parameter servers the session is meant for.

    Parameters
    ----------
    spark : SparkSession

    Returns
    -------
    int
        The property ``spark.gridflow.num.ps``, which you set like any other; 0 without it.

    Raises
    ------
    InvalidArgument
        The property isn't a whole number, or `spark` isn't a session.
    """
    value = _setting(spark, NUM_PS)
    if value is None:
        return 0
    if not value.isdigit():
        raise InvalidArgument(f"{NUM_PS} must be a whole number of at least 0; got {value!r}.")
    return int(value)


def _setting(spark: SparkSession, name: str) -> str | None:
    check_session(spark)
    value = spark.conf.get(name, None)
    return None if value is None else str(value)


# Sessions whose driver logs errors alone.

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
