"""Rows lent by the rank that has most to those that have none."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from gridflow._agent.features.base import Feature
from gridflow._feed.plan import row_borrowing
from gridflow._feed.store import records
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from gridflow._wire.commands import Command


class RowBorrowing(Feature):
    """Lends rows, or borrows some."""

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
        row_borrowing.write(tools.folder / "spool", dataset, path)

        def sent(error: BaseException | None) -> None:
            if error is not None:
                tools.fail("data", f"rows of {dataset!r} could not be lent: {error}")

        tools.uploads.file(path, {"kind": "loan", "name": dataset}, sent)

    def _borrow(self, dataset: str) -> None:
        tools, spec = self.tools, self.tools.payload.spec
        path = tools.folder / f"loan-{dataset}.arrow"
        tools.client.download({"kind": "loan", "name": dataset}, path)
        spool = tools.folder / "spool"
        counts = row_borrowing.take(spool, dataset, path, spec.feed)
        if spec.parts[tools.rank].serves:
            worker = spec.fed.index(tools.rank)
            records.write(spool, dataset, own_rows=0, worker=worker)
        tools.reporter.report(reports.Spooled({dataset: asdict(counts)}, {}))
