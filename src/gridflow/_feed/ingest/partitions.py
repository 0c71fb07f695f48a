"""Checks and changes the number of a DataFrame's partitions, one for each agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = [
    "Repartition",
    "check_partitions",
    "check_repartition",
    "partitions",
    "repartitioned",
    "wrong_partitions",
]

Repartition = Literal["auto", "always", "never"]

_REPARTITION: Final = ("auto", "always", "never")


def check_repartition(repartition: str) -> None:
    """Reject an unknown rule for partitions."""
    if repartition not in _REPARTITION:
        raise InvalidArgument(
            f"repartition must be one of {', '.join(map(repr, _REPARTITION))}, got "
            f"{repartition!r}.{did_you_mean(str(repartition), _REPARTITION)}"
        )


def check_partitions(
    datasets: Mapping[str, DataFrame], num_partitions: int, repartition: str
) -> None:
    """Reject DataFrames that can't be used unchanged, as far as Spark knows before running.

    Raises
    ------
    InvalidArgument
        The rule is unknown; or it is ``"never"``, and there are several datasets, or not one
        partition for each agent.
    """
    check_repartition(repartition)
    if repartition != "never":
        return
    if len(datasets) > 1:
        raise InvalidArgument(
            f"repartition='never' supports only one dataset, got {len(datasets)}: combining "
            "several needs a shuffle."
        )
    for frame in datasets.values():
        known = partitions(frame)
        if known not in {None, num_partitions}:
            raise InvalidArgument(wrong_partitions(int(known or 0), num_partitions))


def wrong_partitions(found: int, needed: int) -> str:
    """Return the error for a wrong number of partitions."""
    return (
        "repartition='never' needs one partition for each task that is fed: the DataFrame has "
        f"{found}, and the job has {needed} such tasks. Call df.repartition({needed}), or leave "
        "repartition= at 'auto'."
    )


def repartitioned(frame: DataFrame, num_partitions: int) -> DataFrame:
    """Shuffle into exactly this number of partitions, even if the frame is empty.

    Spark's adaptive execution doesn't change ``repartition(n)``, but the optimizer replaces a
    provably empty frame with one without partitions: no agent would ever start. A union with an
    empty frame that isn't provably empty prevents this.
    """
    from pyspark.sql import functions as f

    none = frame.sparkSession.range(0, 1, 1, 1).where(f.col("id") < f.spark_partition_id())
    typed = [f.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.union(none.select(typed)).repartition(num_partitions)


def partitions(frame: DataFrame) -> int | None:
    """Return the number of partitions that the frame will certainly have, or None.

    Only plans are recognised that allow a barrier stage: neither adaptive execution nor a union or
    coalesce inside the stage may change the number.
    """
    jdf = getattr(frame, "_jdf", None)
    if jdf is None:  # Spark Connect shows no plan
        return None
    plan = jdf.queryExecution().executedPlan()
    while True:
        kind = plan.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            plan = plan.inputPlan()
        elif kind in {"ProjectExec", "FilterExec", "WholeStageCodegenExec", "InputAdapter"}:
            plan = plan.children().head()
        elif kind == "RangeExec" or (
            kind == "ShuffleExchangeExec"
            and plan.shuffleOrigin().toString() == "REPARTITION_BY_NUM"
        ):
            return int(plan.outputPartitioning().numPartitions())
        elif kind == "InMemoryTableScanExec":
            cached = plan.relation().cacheBuilder()
            if not cached.isCachedColumnBuffersLoaded():
                return None
            return _uniform_partitions(cached.cachedColumnBuffers())
        else:
            return None


def _uniform_partitions(rdd: Any) -> int | None:
    """Return the partitions of an RDD if all its inputs without a shuffle have the same number."""
    number = int(rdd.getNumPartitions())
    waiting = [rdd]
    while waiting:
        current = waiting.pop()
        if current.getNumPartitions() != number:
            return None
        dependencies = current.dependencies()
        for i in range(dependencies.size()):
            dependency = dependencies.apply(i)
            if "ShuffleDependency" not in dependency.getClass().getSimpleName():
                waiting.append(dependency.rdd())
    return number
