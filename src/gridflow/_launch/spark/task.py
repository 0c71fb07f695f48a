"""An agent in a Spark task."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gridflow._agent.agent import Agent
from gridflow._agent.executor import executor_above
from gridflow._agent.folder import deleted_at_last
from gridflow._feed.ingest.jvm_files import Segments
from gridflow._gpu.grant import SparkGpus
from gridflow._spec.gpus import GPU
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gridflow._feed.ingest.base import RankRows
    from gridflow._feed.store import Segment
    from gridflow._wire.payload import AgentPayload


def run_task(
    payload: AgentPayload,
    places: tuple[int, ...],
    rows: RankRows | None,
    gpu_shares: int,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Run the task of this partition with its ``rows``; yield one row at the end."""
    rank = place_of_this_task(places)
    executor, gpus = executor_above(os.getpid()), gpus_of_this_task(gpu_shares)
    agent = Agent(payload, rank, gpus, executor, is_alone=True)
    with rows_of_this_task(rows, batches) as own:
        agent.run(own)
    yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32())})


@contextlib.contextmanager
def rows_of_this_task(
    rows: RankRows | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[Iterable[tuple[str, pa.RecordBatch | Segment]]]:
    """Yield the rows for the agent to spool."""
    with contextlib.ExitStack() as stack:
        if isinstance(rows, Segments):
            stack.enter_context(deleted_at_last(rows.folder()))
        if rows is not None:
            own = rows.batches(batches)
            stack.callback(own.close)
            yield own
            return
        # Spark can't reuse a worker that hasn't read all of its input: the next job would wait
        # until another one has imported what agents need.
        for _ in batches:
            pass
        yield ()


def place_of_this_task(places: tuple[int, ...]) -> int:
    """Return this task's index.

    Raises `InvalidArgument`: The numbers of tasks and indices differ.
    """
    from pyspark import BarrierTaskContext

    from gridflow._feed.ingest.partitions import wrong_partitions

    context = _context()
    partition = int(context.partitionId())
    if isinstance(context, BarrierTaskContext):
        partitions = len(context.getTaskInfos())
    else:  # a plain task doesn't know how many there are
        partitions = max(len(places), partition + 1)
    if partitions != len(places):
        raise InvalidArgument(wrong_partitions(partitions, len(places)))
    return places[partition]


def gpus_of_this_task(gpu_shares: int) -> SparkGpus:
    """Return the GPUs that Spark assigned to this task."""
    gpus = _context().resources().get(GPU)
    return SparkGpus(tuple(gpus.addresses) if gpus is not None else (), gpu_shares)


def _context() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise AssertionError("an agent's body must run in a Spark task")
    return context
