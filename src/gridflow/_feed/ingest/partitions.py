"""Checks and changes the number of a DataFrame's partitions, one for each agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from gridflow._spec import jvm
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

__all__ = [
    "Repartition",
    "check_partitions",
    "check_repartition",
    "not_beside_each_other",
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
    datasets: Mapping[str, DataFrame],
    num_partitions: int,
    repartition: str,
    *,
    is_barrier: bool = False,
) -> None:
    """Reject DataFrames that can't be used unchanged, as far as Spark knows before running.

    `num_partitions`: Number of agents.
    `repartition`: {"auto", "always", "never"}.
    `is_barrier`: Whether the agents' stage is a barrier stage, inside which no partitions may be
        merged.
    Raises `InvalidArgument`: The rule is unknown; or it is ``"never"``, and there are several
        datasets, or not one partition for each agent.
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
        if is_barrier and _merges(frame):
            raise InvalidArgument(not_beside_each_other(num_partitions))


def wrong_partitions(found: int, needed: int) -> str:
    """Return the error for a wrong number of partitions."""
    return (
        "repartition='never' needs one partition for each task that is fed: the DataFrame has "
        f"{found}, and the job has {needed} such tasks. Call df.repartition({needed}), or leave "
        "repartition= at 'auto'."
    )


def not_beside_each_other(needed: int) -> str:
    """Return the error for a stage in which partitions are merged or put beside others."""
    return (
        "repartition='never' keeps the DataFrame's partitions, but its last stage changes their "
        "number (by coalesce, union, limit or the like), and Spark starts the tasks of such a "
        f"stage one by one, not together (SPARK-24820). Call df.repartition({needed}), or leave "
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
    plan = _decisive(frame)
    kind = "" if plan is None else plan.getClass().getSimpleName()
    if kind == "RangeExec" or (
        kind == "ShuffleExchangeExec" and plan.shuffleOrigin().toString() == "REPARTITION_BY_NUM"
    ):
        return int(plan.outputPartitioning().numPartitions())
    if kind == "InMemoryTableScanExec":
        cached = plan.relation().cacheBuilder()
        if cached.isCachedColumnBuffersLoaded():
            return _uniform_partitions(cached.cachedColumnBuffers())
    return None


def _merges(frame: DataFrame) -> bool:
    """Return whether the frame's last stage certainly merges partitions."""
    plan = _decisive(frame)
    return plan is not None and plan.getClass().getSimpleName() == "CoalesceExec"


def _decisive(frame: DataFrame) -> Any:
    """Return the last node of a frame's plan that says how many partitions there are."""
    jdf = jvm.java_frame(frame)
    if jdf is None:  # Spark Connect shows no plan
        return None
    plan = jdf.queryExecution().executedPlan()
    while True:
        kind = plan.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            plan = plan.inputPlan()
        elif kind in {"ProjectExec", "FilterExec", "WholeStageCodegenExec", "InputAdapter"}:
            plan = plan.children().head()
        else:
            return plan


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
