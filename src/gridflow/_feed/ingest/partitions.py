"""How many partitions a DataFrame has, and how it gets as many as there are agents."""

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
    """Refuse what is no rule for partitions."""
    if repartition not in _REPARTITION:
        raise InvalidArgument(
            f"repartition must be one of {', '.join(map(repr, _REPARTITION))}, got "
            f"{repartition!r}.{did_you_mean(str(repartition), _REPARTITION)}"
        )


def check_partitions(
    datasets: Mapping[str, DataFrame], num_partitions: int, repartition: str
) -> None:
    """Refuse DataFrames that can't be used as they lie, as far as Spark knows before running.

    Raises
    ------
    InvalidArgument
        ``repartition`` is none of the rules; or it is ``"never"``, and there are several datasets
        or not one partition for each agent.
    """
    check_repartition(repartition)
    if repartition != "never":
        return
    if len(datasets) > 1:
        raise InvalidArgument(
            f"repartition='never' works for one dataset, these are {len(datasets)}: they can only "
            f"be brought together by a shuffle."
        )
    for frame in datasets.values():
        known = partitions(frame)
        if known not in {None, num_partitions}:
            raise InvalidArgument(wrong_partitions(int(known or 0), num_partitions))


def wrong_partitions(found: int, needed: int) -> str:
    """Return what is wrong with rows that lie in this number of partitions."""
    return (
        f"repartition='never' needs one partition for each task that is fed: the DataFrame has "
        f"{found}, the job {needed} such tasks. Call df.repartition({needed}), or leave "
        "repartition= at 'auto'."
    )


def repartitioned(frame: DataFrame, num_partitions: int) -> DataFrame:
    """Shuffle into exactly this number of partitions, empty frames as well.

    Spark's adaptive execution leaves ``repartition(n)`` alone, but the optimizer replaces a frame
    that it can prove to be empty by one without partitions: no agent would ever start. A union
    with no rows, of which it can't prove that, prevents it.
    """
    from pyspark.sql import functions as f

    none = frame.sparkSession.range(0, 1, 1, 1).where(f.col("id") < f.spark_partition_id())
    typed = [f.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.union(none.select(typed)).repartition(num_partitions)


def partitions(frame: DataFrame) -> int | None:
    """Return the number of partitions that the frame will certainly have, None if in doubt.

    Only shapes of plan are known here of which a barrier stage can be made: neither adaptive
    execution, nor a union or coalesce inside the stage, may change the number.
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
    """Return the partitions of an RDD if all those it is made of without a shuffle have as many."""
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
