"""What Spark's tasks run, as it is sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from gridflow.feed.sources.base import RankRows
    from gridflow.wire.payload import AgentPayload


def agent_body(
    payload: AgentPayload, places: tuple[int, ...], rows: RankRows | None, gpu_shares: int
) -> Any:
    """Return the function of the stage. It is sent by value, so it can say what is missing."""
    gridflow_version = _version()

    def run_agent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            from gridflow.launch.spark.task import run_task
        except ImportError as error:
            import sys

            raise ImportError(
                f"gridflow {gridflow_version} can't be imported by {sys.executable} on an "
                f"executor: {error}"
            ) from error
        yield from run_task(payload, places, rows, gpu_shares, batches)

    return run_agent


def _version() -> str:
    from importlib.metadata import version

    return version("gridflow")
