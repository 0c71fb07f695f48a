"""Which rank has how many rows: counts, lending and borrowing, without I/O, clock or threads.

::

    WAITING --all fed ranks have spooled, none lacks rows--------------------> SETTLED
       |                          |                                               ^
       |                          +--some lack rows--> LENDING --all have some----+
       +--a dataset has no rows at all, or rows of different shapes--> UNFIT

A rank without any row of a dataset can't make a step. The rank with the most rows lends it some as
repeated rows, which the ledger shows. A column that one rank can't feed is left out on all ranks; a
column whose type or shape differs between ranks ends the job.

The ranks announce their first rows, and all are told once each has some. If the function trains on
rows before all have arrived, they keep announcing, and all are told how many rows each of them has
for certain. This number only grows, and once all have spooled it is the final count. So a rank
that knows less waits longer, and all ranks do the same.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any

from gridflow._features.acts import Count, Differ, Forget, SendAll, SendTo, Unfit
from gridflow._feed.ledger import DatasetCounts
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._features.acts import Act
    from gridflow._wire.messages import Report
    from gridflow._wire.reports import Arriving, Spooled


class RowsPhase(enum.Enum):
    """The phases drawn above."""

    WAITING = "waiting"
    LENDING = "lending"
    SETTLED = "settled"
    UNFIT = "unfit"


class Specs:
    """The types and shapes of columns, which must be the same on all ranks.

    `known`: The type and row shape of each column, encoded by
        `gridflow._feed.store.records.encode_specs`. Only a rank with rows knows all of it.
    """

    def __init__(self) -> None:
        self.known: dict[str, dict[str, list[Any]]] = {}

    def add(self, dataset: str, specs: Mapping[str, list[Any]]) -> str | None:
        """Add a rank's specs; return the contradiction with another rank, or None."""
        known = self.known.setdefault(dataset, {})
        for column, (kind, shape) in specs.items():
            other_kind, other = known.get(column, (kind, shape))
            where = f"column {column!r} of dataset {dataset!r}"
            if kind != other_kind or len(shape) != len(other):
                return (
                    f"{where} is {_spec(other_kind, other)} in some rows and {_spec(kind, shape)} "
                    "in others. All rows must have the same type and shape."
                )
            pairs = zip(shape, other, strict=True)
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                return (
                    f"{where} has rows of shape {_shape(other)} and of shape {_shape(shape)}. All "
                    f"rows must have the same shape. For arrays of varying length use "
                    f"columns={{{column!r}: Padded(length)}}, or Ragged()."
                )
            merged = [b if a is None else a for a, b in zip(shape, other, strict=True)]
            known[column] = [kind, merged]
        return None


def _shape(sizes: Sequence[int | None]) -> str:
    return str(tuple(sizes))


def _spec(kind: str, sizes: Sequence[int | None]) -> str:
    return f"{kind} of shape {_shape(sizes)}" if sizes else kind


class LaunchRows:
    """The rows of one launch.

    `fed`: Tasks that are fed, in order.
    `never_fed` (mapping of dataset to mapping of column to reason): Columns known not to be fed
        before the launch.
    """

    def __init__(
        self, fed: Sequence[int], never_fed: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.phase = RowsPhase.WAITING
        self._fed = tuple(fed)
        self._never_fed = never_fed or {}
        self._counts: dict[int, dict[str, DatasetCounts]] = {}
        self._specs = Specs()
        self._left_out: dict[str, dict[str, str]] = {}
        self._lent: set[str] = set()
        self._arriving: dict[int, Mapping[str, int]] = {}
        self._told: commands.Arrived | None = None
        self._settled: commands.Counts | None = None
        #: What identifies a rank's rows, by dataset, and which ranks have them computed once more.
        self._digests: dict[int, Mapping[str, str]] = {}
        self._again: set[int] = set()

    @property
    def counts(self) -> list[dict[str, DatasetCounts]]:
        """The known counts of each fed rank, in order."""
        return [self._counts[rank] for rank in self._fed if rank in self._counts]

    def hear(self, rank: int, report: Report) -> list[Act]:
        """Handle an agent's report, if it is about rows."""
        match report:
            case reports.Spooled():
                acts = self.spooled(rank, report)
            case reports.Arriving():
                acts = self.arriving(rank, report)
            case _:
                return []
        if not any(isinstance(act, SendAll) for act in acts):
            return acts
        known = [
            Count(name, place, count)
            for place, counts in enumerate(self.counts)
            for name, count in counts.items()
        ]
        return [*known, *acts]

    def spooled(self, rank: int, report: Spooled) -> list[Act]:
        """Note a rank's rows: all of its own, or those it has borrowed."""
        new = {name: DatasetCounts(**fields) for name, fields in report.counts.items()}
        if rank in self._again:
            return self._came_again(rank, report, new)
        self._digests[rank] = report.digests
        self._counts[rank] = {**self._counts.get(rank, {}), **new}
        for name, reasons in report.left_out.items():
            known = self._left_out.setdefault(name, dict(self._never_fed.get(name, {})))
            known.update(reasons)
        if self.phase is RowsPhase.UNFIT:
            return []
        for name, specs in report.specs.items():
            if (reason := self._specs.add(name, specs)) is not None:
                self.phase = RowsPhase.UNFIT
                return [Unfit(reason)]
        if len(self.counts) < len(self._fed):
            return self._tell()
        return self._settle()

    def why_not_again(self, rank: int) -> str:
        """Return why a rank's rows can't be computed once more; empty if they can."""
        if self.phase is not RowsPhase.SETTLED and rank in self._fed:
            return "Not all ranks had their rows yet, so the group can't go on without it"
        if any(count.borrowed for count in self._counts.get(rank, {}).values()):
            return "It had borrowed its rows, so the group can't go on without it"
        return ""

    def come_again(self, rank: int) -> None:
        """Note that a new agent takes a rank's place, and computes its rows once more."""
        self._again.add(rank)

    def _came_again(self, rank: int, report: Spooled, new: dict[str, DatasetCounts]) -> list[Act]:
        """Tell a rank what the others know, if its rows are what they were."""
        self._again.discard(rank)
        assert self._settled is not None
        known, digests = self._counts[rank], self._digests[rank]
        others = [
            name
            for name in new
            if new[name] != known[name] or report.digests.get(name) != digests.get(name)
        ]
        if not others:
            return [SendTo(rank, self._settled)]
        reason = (
            f"Its rows of {others[0]!r}, computed once more, are others, or in another order, so "
            "the group can't go on from where it was"
        )
        self._counts[rank], self._digests[rank] = new, report.digests
        return [Differ(rank, reason), *self._settle()]

    def arriving(self, rank: int, report: Arriving) -> list[Act]:
        """Note how many rows a rank has so far."""
        self._arriving[rank] = report.rows
        return self._tell()

    def _tell(self) -> list[Act]:
        """Announce how many rows there are for certain, if that has changed."""
        known = [self._so_far(rank) for rank in self._fed]
        if self.phase is not RowsPhase.WAITING or None in known:
            return []
        ranks = [rows for rows in known if rows is not None]
        certain = {name: min(rows[name] for rows in ranks) for name in ranks[0]}
        told = commands.Arrived(certain, {name: self._going_on(name) for name in certain})
        if told == self._told or not any(certain.values()):
            return []
        self._told = told
        return [SendTo(rank, told) for rank in self._fed]

    def _so_far(self, rank: int) -> Mapping[str, int] | None:
        if rank in self._counts:
            return {name: count.rows for name, count in self._counts[rank].items()}
        return self._arriving.get(rank)

    def _going_on(self, dataset: str) -> int:
        ended = [counts[dataset].rows for counts in self._counts.values()]
        if 0 in ended:  # that rank has none to repeat until it is lent some
            return 0
        return min(self._arriving[rank][dataset] for rank in self._fed if rank not in self._counts)

    def is_lent(self, dataset: str) -> bool:
        """Return whether a rank was asked to lend rows of a dataset."""
        return dataset in self._lent

    def arrived(self, dataset: str) -> list[Act]:
        """Note that the driver has the lent rows of a dataset."""
        return [
            SendTo(rank, commands.Borrow(dataset))
            for rank in self._fed
            if rank in self._counts and not self._counts[rank][dataset].rows
        ]

    def _settle(self) -> list[Act]:
        counts = self.counts
        rows = {name: [each[name].rows for each in counts] for name in counts[0]}
        for name, ranks in rows.items():
            if not any(ranks):
                self.phase = RowsPhase.UNFIT
                return [
                    Unfit(
                        f"dataset {name!r} has no rows. Check its filters and joins, and "
                        "nulls='drop', which may have dropped them all."
                    )
                ]
        lacking = [name for name, ranks in rows.items() if min(ranks) == 0]
        if lacking:
            self.phase = RowsPhase.LENDING
            lenders = {name: self._fed[rows[name].index(max(rows[name]))] for name in lacking}
            new = [name for name in lacking if name not in self._lent]
            self._lent.update(new)
            return [SendTo(lenders[name], commands.Lend(name)) for name in new]
        self.phase = RowsPhase.SETTLED
        borrowed = {name: [each[name].borrowed for each in counts] for name in rows}
        nulls: dict[str, Counter[str]] = {}
        for each in counts:
            for name, count in each.items():
                if count.nulls:
                    nulls.setdefault(name, Counter()).update(count.nulls)
        told = commands.Counts(
            rows,
            borrowed,
            self._specs.known,
            self._left_out,
            {name: dict(columns) for name, columns in nulls.items()},
        )
        self._settled = told
        return [SendAll(told), *(Forget(name) for name in sorted(self._lent))]
