"""Rows for a rank that got none: lent by the rank that has most, as repeated rows.

A rank without rows can make no step, and with it nobody can. It happens with empty partitions, and
where there are fewer rows than ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.store import SpoolReader, SpoolWriter

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._feed.ledger import DatasetCounts
    from gridflow._feed.normalize import FeedOptions

#: Enough for some batches that differ.
_MOST_ROWS: Final = 1024


def write(spool: Path, dataset: str, path: Path) -> None:
    """Write some rows of a dataset, which has at least one, into a file."""
    batch = next(SpoolReader(spool, dataset).batches()).slice(0, _MOST_ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)


def take(spool: Path, dataset: str, path: Path, options: FeedOptions) -> DatasetCounts:
    """Make the rows of a file the spool of a dataset that had none; return its counts."""
    before = SpoolReader(spool, dataset).counts
    with pa.memory_map(str(path)) as source, SpoolWriter(spool, options) as writer:
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            writer.write(dataset, file.get_batch(index))
        rows = writer.close()[dataset].rows
    return replace(before, rows=rows, borrowed=rows)
