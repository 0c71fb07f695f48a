"""Row counts: rows in, trained on, repeated and left out. Pure."""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    import pandas as pd

    _Counts: TypeAlias = "dict[tuple[str, int], DatasetCounts]"

__all__ = ["DatasetCounts", "EpochRecord", "Ledger"]

#: Maximum lines shown in a notebook or console; `str` has all.
_MOST_LINES: Final = 60


@dataclass(frozen=True)
class DatasetCounts:
    """Rows of one dataset on one rank, as counted when its spool was written.

    Attributes
    ----------
    rows_in : int
        Rows that arrived.
    rows : int
        Rows that can be read from the spool.
    dropped : int
        Rows dropped because of nulls (``FeedOptions(nulls="drop")``).
    borrowed : int
        Rows borrowed from another rank, because this one had none: they are fed twice.
    nulls : dict
        Number of dropped rows with a null, by column. A row may have several.
    """

    rows_in: int = 0
    rows: int = 0
    dropped: int = 0
    borrowed: int = 0
    nulls: dict[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if min(self.rows_in, self.rows, self.dropped, self.borrowed) < 0:
            raise InvalidArgument(f"counts of rows can't be negative, got {self}.")


@dataclass(frozen=True)
class EpochRecord:
    """What one rank was fed in one epoch.

    Attributes
    ----------
    dataset, rank, epoch
        The rows, the rank and the epoch.
    rows_fed : int
        Rows passed to tf.data, including repeated ones.
    rows_repeated : int
        Rows that were fed again, so that all ranks run equal steps.
    rows_left_out : int
        Rows of the spool that the epoch didn't use: for ``tail="drop"``, or because the rank was
        away (``num_workers=(2, 8)``).
    complete : bool
        Whether the epoch reached its last batch. An abandoned epoch has False and isn't checked;
        its rows are counted in shuffle windows, including prefetched ones. For a stream, these are
        the rows of the steps made, and `rows_left_out` the other available rows; the rest of
        ``rows_in`` wasn't used either.
    rows_before : int
        Rows of this epoch that were fed before a restart, if it was resumed in the middle.
    """

    dataset: str
    rank: int
    epoch: int
    rows_fed: int
    rows_repeated: int
    rows_left_out: int
    complete: bool
    rows_before: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-compatible dict."""
        return asdict(self)


class Ledger:
    """All counts and records of a run.

    Examples
    --------
    >>> ledger = Ledger()
    >>> ledger.set_counts("train", 0, DatasetCounts(rows_in=10, rows=9, dropped=1))
    >>> ledger.add(EpochRecord("train", 0, 0, 12, 3, 0, complete=True))
    >>> ledger.check()
    []
    """

    def __init__(self) -> None:
        self._counts: _Counts = {}
        self._records: list[EpochRecord] = []
        #: The same from before the rows were divided among another number of ranks.
        self._earlier: list[tuple[_Counts, list[EpochRecord]]] = []

    @property
    def counts(self) -> Mapping[tuple[str, int], DatasetCounts]:
        """What arrived, by (dataset, rank)."""
        return dict(self._counts)

    @property
    def nulls(self) -> dict[str, dict[str, int]]:
        """Number of dropped rows with a null, by dataset and column, over all ranks."""
        found: dict[str, Counter[str]] = {}
        for (dataset, _), counts in sorted(self._counts.items()):
            if counts.nulls:
                found.setdefault(dataset, Counter()).update(counts.nulls)
        return {dataset: dict(columns.most_common()) for dataset, columns in found.items()}

    @property
    def records(self) -> tuple[EpochRecord, ...]:
        """The epochs, in the order in which they were reported."""
        return tuple(record for _, records in self._parts for record in records)

    def divide_anew(self) -> None:
        """Note that the rows of all datasets are divided among another number of ranks.

        What was recorded so far is checked against the counts so far.
        """
        if self._counts or self._records:
            self._earlier.append((self._counts, self._records))
            self._counts, self._records = {}, []

    @property
    def _parts(self) -> list[tuple[_Counts, list[EpochRecord]]]:
        return [*self._earlier, (self._counts, self._records)]

    def set_counts(self, dataset: str, rank: int, counts: DatasetCounts) -> None:
        """Record the contents of a rank's spool; a restart may set it again."""
        self._counts[dataset, rank] = counts

    def add(self, record: EpochRecord | Mapping[str, Any]) -> None:
        """Record one epoch of one rank, as a record or its dict."""
        if not isinstance(record, EpochRecord):
            record = EpochRecord(**record)
        self._records.append(record)

    def check(self) -> list[str]:
        """Return a sentence for every count that doesn't balance; empty if all do.

        For each spool: rows in + borrowed = rows + dropped. For each complete epoch: rows in +
        borrowed = rows fed (before a restart and since) - repeated + left out + dropped.
        """
        return [words for counts, records in self._parts for words in _wrong(counts, records)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a JSON-compatible dict; `from_dict` reads it back."""
        *earlier, (counts, records) = self._parts
        found = _as_data(counts, records)
        if earlier:
            found["earlier"] = [_as_data(*each) for each in earlier]
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        """Read what `to_dict` returned."""
        ledger = cls()
        for part in (*data.get("earlier", ()), data):
            ledger.divide_anew()
            for entry in part["counts"]:
                fields = dict(entry)
                key = fields.pop("dataset"), fields.pop("rank")
                ledger.set_counts(*key, DatasetCounts(**fields))
            for record in part["records"]:
                ledger.add(record)
        return ledger

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per epoch, dataset and rank, with the counts."""
        import pandas as pd

        columns = [
            *("dataset", "rank", "epoch", "rows_in", "dropped", "rows_before"),
            *("rows_fed", "rows_repeated", "rows_left_out", "complete"),
        ]
        lines = [_line(counts, each) for counts, records in self._parts for each in records]
        return pd.DataFrame(lines, columns=columns)

    def __repr__(self) -> str:
        if not self._counts:
            return "Ledger()"
        lines = str(self).splitlines()
        if len(lines) > _MOST_LINES:
            more = len(lines) - _MOST_LINES
            lines[_MOST_LINES // 2 : -_MOST_LINES // 2] = [f"… {more:,} lines: print(ledger) …"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    def __str__(self) -> str:
        between = "\n\nThen, with the rows divided among another number of workers:\n\n"
        *earlier, _ = self._parts
        shown = [_text(counts, {}, records) for counts, records in earlier]
        return between.join([*shown, _text(self._counts, self.nulls, self._records)])


def _wrong(known: _Counts, records: Sequence[EpochRecord]) -> list[str]:
    """Return what doesn't balance."""
    wrong = [
        f"{dataset!r} of rank {rank}: {c.rows_in} rows came in, but {c.rows} were stored and "
        f"{c.dropped} dropped."
        for (dataset, rank), c in sorted(known.items())
        if c.rows_in + c.borrowed != c.rows + c.dropped
    ]
    for record in records:
        if not record.complete:
            continue
        counts = known.get((record.dataset, record.rank))
        where = f"{record.dataset!r} of rank {record.rank}, epoch {record.epoch}"
        if counts is None:
            wrong.append(f"{where}: fed, but incoming rows were never counted.")
            continue
        used = record.rows_before + record.rows_fed - record.rows_repeated
        if counts.rows_in + counts.borrowed != used + record.rows_left_out + counts.dropped:
            wrong.append(
                f"{where}: {counts.rows_in} rows came in, but {used} were fed, "
                f"{record.rows_left_out} left out and {counts.dropped} dropped."
            )
    return wrong


def _as_data(known: _Counts, records: Sequence[EpochRecord]) -> dict[str, Any]:
    return {
        "counts": [
            {"dataset": dataset, "rank": rank, **asdict(counts)}
            for (dataset, rank), counts in sorted(known.items())
        ],
        "records": [record.to_dict() for record in records],
    }


def _line(known: _Counts, record: EpochRecord) -> dict[str, Any]:
    counts = known.get((record.dataset, record.rank), DatasetCounts())
    return {"rows_in": counts.rows_in, "dropped": counts.dropped, **record.to_dict()}


def _text(
    known: _Counts, nulls: Mapping[str, Mapping[str, int]], records: Sequence[EpochRecord]
) -> str:
    lines = ["dataset          rank      rows in      dropped     borrowed"]
    lines += [
        f"{dataset:<16} {rank:>4} {c.rows_in:>12,} {c.dropped:>12,} {c.borrowed:>12,}"
        for (dataset, rank), c in sorted(known.items())
    ]
    for dataset, columns in nulls.items():
        named = ", ".join(f"{rows:,} in {column}" for column, rows in columns.items())
        lines.append(f"dropped from {dataset} for nulls: {named}")
    if records:
        lines += ["", "dataset          rank epoch          fed     repeated     left out"]
    lines += [
        f"{r.dataset:<16} {r.rank:>4} {r.epoch:>5} {r.rows_before + r.rows_fed:>12,} "
        f"{r.rows_repeated:>12,} {r.rows_left_out:>12,}{'' if r.complete else '  (given up)'}"
        for r in records
    ]
    return "\n".join(lines)
