"""An agent as the body of a Spark task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow.agent.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.agent.payload import AgentPayload


def run_task(
    payload: AgentPayload, places: tuple[int, ...], tags: Any, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run the task of this partition; yields one row when it is over."""
    from pyspark import TaskContext

    from gridflow.feed import frames

    context = TaskContext.get()
    if context is None:
        raise AssertionError("run_task() runs in a Spark task")
    partition = context.partitionId()
    if partition >= len(places):
        raise AssertionError(f"the stage has more partitions than tasks: {partition}")
    rank = places[partition]
    is_fed = payload.datasets and rank in payload.fed
    rows = frames.agent_batches(batches, tags) if is_fed else iter(())
    Agent(payload, rank).run(rows)
    yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32())})
