"""Whose rows are where: counts, lending and borrowing, without I/O, clock or threads.

::

    WAITING --all fed ranks have spooled, none lacks rows--------------------> SETTLED
       |                          |                                               ^
       |                          +--some lack rows--> LENDING --all have some----+
       +--a dataset has no rows at all, or rows of different shapes--> UNFIT

A rank without any row of a dataset can make no step. It is lent some by the rank that has most, as
repeated rows; the ledger says so. A column that one rank can't feed is left out on all of them;
one that has other types or shapes on other ranks ends the job.

The ranks announce their first rows, and all are told once each has some. Where a function trains
on them before all have arrived, the ranks go on announcing, and all are told how many each of them
has for certain. That only grows, and once all have spooled it is the counts: so whoever knows less
waits longer, and all come to the same.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gridflow._feed.ledger import DatasetCounts
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._wire.reports import Arriving, RowsWanted, Spooled


class RowsPhase(enum.Enum):
    """Where the rows stand; drawn above."""

    WAITING = "waiting"
    LENDING = "lending"
    SETTLED = "settled"
    UNFIT = "unfit"


@dataclass(frozen=True)
class SendTo:
    """A command for one rank."""

    rank: int
    command: commands.Command


@dataclass(frozen=True)
class SendAll:
    """A command for every task."""

    command: commands.Command


@dataclass(frozen=True)
class Forget:
    """The rows that were lent of a dataset are where they have to be."""

    dataset: str


@dataclass(frozen=True)
class Unfit:
    """The rows of a dataset, all ranks' together, can't be fed."""

    reason: str


RowsAction: TypeAlias = SendTo | SendAll | Forget | Unfit


class Specs:
    """The types and shapes of columns, which must be the same on all ranks.

    Attributes
    ----------
    known : dict of dataset to dict
        Of each column, its type and the shape of a row, as
        `gridflow._feed.store.records.encode_specs` has them. A rank without rows
        doesn't know all of it; one that has some does.
    """

    def __init__(self) -> None:
        self.known: dict[str, dict[str, list[Any]]] = {}

    def add(self, dataset: str, specs: Mapping[str, list[Any]]) -> str | None:
        """Take what a rank knows; return what contradicts another rank, None if nothing does."""
        known = self.known.setdefault(dataset, {})
        for column, (kind, shape) in specs.items():
            other_kind, other = known.get(column, (kind, shape))
            where = f"column {column!r} of dataset {dataset!r}"
            if kind != other_kind or len(shape) != len(other):
                return (
                    f"{where} is {_spec(other_kind, other)} in some rows and {_spec(kind, shape)} "
                    "in others: all rows need one type and shape."
                )
            pairs = zip(shape, other, strict=True)
            if any(None not in pair and pair[0] != pair[1] for pair in pairs):
                return (
                    f"{where} has rows of shape {_shape(other)} and of shape {_shape(shape)}: all "
                    f"rows need the same. For arrays of different length say "
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

    Parameters
    ----------
    fed : sequence of int
        Places of the tasks that rows go to, by their order among these.
    never_fed : mapping of dataset to mapping of column to reason, optional
        Columns of which it was known before.
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
        self._announced = False
        self._told: commands.Arrived | None = None

    @property
    def counts(self) -> list[dict[str, DatasetCounts]]:
        """What each fed rank has, in order, as far as it is known."""
        return [self._counts[rank] for rank in self._fed if rank in self._counts]

    def take(self, rank: int, report: Spooled | Arriving | RowsWanted) -> list[RowsAction]:
        """Take what an agent reports of its rows."""
        match report:
            case reports.Spooled():
                return self.spooled(rank, report)
            case reports.Arriving():
                return self.arriving(rank, report)
        return self.wanted()

    def spooled(self, rank: int, report: Spooled) -> list[RowsAction]:
        """Take what a rank has, all of it or what it has borrowed."""
        new = {name: DatasetCounts(**fields) for name, fields in report.counts.items()}
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

    def wanted(self) -> list[RowsAction]:
        """Take note that a function trains before all rows have arrived."""
        if self._announced or self.phase is not RowsPhase.WAITING:
            return []
        self._announced = True
        return [SendTo(rank, commands.Announce()) for rank in self._fed]

    def arriving(self, rank: int, report: Arriving) -> list[RowsAction]:
        """Take how many rows a rank has so far."""
        self._arriving[rank] = report.rows
        return self._tell()

    def _tell(self) -> list[RowsAction]:
        """Say how many rows there are for certain, if it is news."""
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
        if 0 in ended:  # it has none to repeat, before it is lent some
            return 0
        return min(self._arriving[rank][dataset] for rank in self._fed if rank not in self._counts)

    def is_lent(self, dataset: str) -> bool:
        """Return whether a rank was asked for rows of a dataset."""
        return dataset in self._lent

    def arrived(self, dataset: str) -> list[RowsAction]:
        """Take note that rows of a dataset which were lent lie in the driver."""
        return [
            SendTo(rank, commands.Borrow(dataset))
            for rank in self._fed
            if rank in self._counts and not self._counts[rank][dataset].rows
        ]

    def _settle(self) -> list[RowsAction]:
        counts = self.counts
        rows = {name: [each[name].rows for each in counts] for name in counts[0]}
        for name, ranks in rows.items():
            if not any(ranks):
                self.phase = RowsPhase.UNFIT
                return [
                    Unfit(
                        f"dataset {name!r} has no rows. Look at its filters and joins, and at "
                        "nulls='drop', which may have left none."
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
        return [SendAll(told), *(Forget(name) for name in sorted(self._lent))]
