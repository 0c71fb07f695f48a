"""The body of the check's Spark tasks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gridflow._agent.executor import executor_above
from gridflow._doctor.host import Host, look
from gridflow._doctor.meeting import Attendance, attend

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

SCHEMA = "found string"


@dataclass(frozen=True)
class Seen:
    """What a task has seen: its host, and its connections."""

    host: Host
    attendance: Attendance


def probe_body(meeting: tuple[str, int, bytes], wishes: Mapping[str, Any]) -> Any:
    """Return the stage's function, which holds only plain values; see `probe`."""
    from gridflow._launch.spark.bodies import importing

    return importing("gridflow._doctor.probe", "probe", meeting, wishes)


def probe(
    meeting: tuple[str, int, bytes], wishes: Mapping[str, Any], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Look around in a task; yield one row with `Seen` as JSON.

    `meeting`: Host, port and key.
    `wishes`: The arguments of `look`.
    `batches`: Read and ignored.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    for _ in batches:
        pass
    context = TaskContext.get()
    assert context is not None
    above = executor_above(os.getpid())
    name = above.name if above else "driver"
    attendance = attend(*meeting, context.partitionId(), name)
    seen = Seen(look(**wishes), attendance)
    yield pa.RecordBatch.from_pydict({"found": [msgspec.json.encode(seen).decode()]})


def read(found: str) -> Seen:
    """Read a task's row back."""
    return msgspec.json.decode(found, type=Seen)
