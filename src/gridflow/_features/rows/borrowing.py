"""Rows for a rank that got none: lent by the rank that has most, as repeated rows.

A rank without rows can make no step, and with it nobody can. It happens with empty partitions, and
where there are fewer rows than ranks.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._features.base import Feature
from gridflow._feed.store import SpoolReader, SpoolWriter, records
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow._feed.ledger import DatasetCounts
    from gridflow._feed.normalize import FeedOptions
    from gridflow._wire.commands import Command

#: Enough for some batches that differ.
_MOST_ROWS: Final = 1024


class RowBorrowing(Feature):
    """Lends or borrows rows."""

    def obey(self, command: Command) -> bool:
        """Carry out `Lend` and `Borrow`."""
        match command:
            case commands.Lend():
                self._lend(command.dataset)
            case commands.Borrow():
                self._borrow(command.dataset)
            case _:
                return False
        return True

    def _lend(self, dataset: str) -> None:
        tools = self.tools
        path = tools.folder / f"loan-{dataset}.arrow"
        write_loan(tools.folder / "spool", dataset, path)

        def sent(error: BaseException | None) -> None:
            if error is not None:
                tools.fail("data", f"can't lend rows of {dataset!r}: {error}")

        tools.uploads.file(path, {"kind": "loan", "name": dataset}, sent)

    def _borrow(self, dataset: str) -> None:
        tools, spec = self.tools, self.tools.payload.spec
        path = tools.folder / f"loan-{dataset}.arrow"
        tools.client.download({"kind": "loan", "name": dataset}, path)
        spool = tools.folder / "spool"
        counts = take_loan(spool, dataset, path, spec.feed)
        if spec.parts[tools.rank].serves:
            worker = spec.fed.index(tools.rank)
            records.write(spool, dataset, own_rows=0, worker=worker)
        tools.reporter.report(reports.Spooled({dataset: asdict(counts)}, {}))


def write_loan(spool: Path, dataset: str, path: Path) -> None:
    """Write some rows of a dataset, which has at least one, into a file."""
    batch = next(SpoolReader(spool, dataset).batches()).slice(0, _MOST_ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)


def take_loan(spool: Path, dataset: str, path: Path, options: FeedOptions) -> DatasetCounts:
    """Make the rows of a file the spool of a dataset that had none; return its counts."""
    before = SpoolReader(spool, dataset).counts
    with pa.memory_map(str(path)) as source, SpoolWriter(spool, options) as writer:
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            writer.write(dataset, file.get_batch(index))
        rows = writer.close()[dataset].rows
    return replace(before, rows=rows, borrowed=rows)
