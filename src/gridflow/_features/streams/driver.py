"""The progress of the streams of pushed rows on all ranks, without I/O, clock or threads.

::

    OPENING --all ranks receive--> OPEN --end()--> ENDING --all ranks have said so--> ENDED

All ranks are told ``certain``, the number of rows that each of them has received. It only grows, so
ranks may learn of it at different times. In the end it becomes the counts of all ranks, which
determine the remaining steps (`gridflow._feed.plan.streams`).

The feeder may divide a stream into sections (`end_section`). Each ends like the stream itself, with
all of its rows trained on, and with a checkpoint. `certain` then counts from the beginning of the
section. The next section ends only when all ranks have trained on the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._features.acts import Count, SendAll, Unfit
from gridflow._features.rows.driver import Specs
from gridflow._feed.ledger import DatasetCounts
from gridflow._wire import commands, reports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._features.acts import Act
    from gridflow._wire.commands import Command
    from gridflow._wire.messages import Report
    from gridflow._wire.reports import Receiving, SectionTrained, Streamed


class LaunchStreams:
    """The streams of one launch.

    `ranks`: The tasks that are fed.
    `was`: The streams of the previous launch: what has ended stays ended.
    """

    def __init__(self, ranks: Sequence[int], was: LaunchStreams | None = None) -> None:
        self._ranks = tuple(ranks)
        self._generation = 0
        self._has_ended = was is not None and was.has_ended
        self._addresses: dict[str, dict[int, str]] = {}
        self._together: set[str] = set()
        self._heard: dict[int, Streamed] = {}
        self._told: commands.StreamStanding | None = None
        self._sections, self._label = (0, None) if was is None else was.sections
        self._trained: dict[int, SectionTrained] = {}
        self._specs = Specs() if was is None else was.specs

    @property
    def has_ended(self) -> bool:
        """Whether no more rows will come."""
        return self._has_ended

    @property
    def is_used(self) -> bool:
        """Whether any rank takes rows."""
        return bool(self._addresses)

    @property
    def sections(self) -> tuple[int, str | None]:
        """The number of sections, and the label of the last one; None without sections."""
        return self._sections, self._label

    @property
    def specs(self) -> Specs:
        """The types and shapes of the received rows."""
        return self._specs

    def begin_generation(self, generation: int) -> list[Command]:
        """Forget what the ranks reported in the previous generation."""
        self._generation, self._heard, self._told = generation, {}, None
        self._trained = {}
        return self._ends() if self._label is not None or self._has_ended else []

    def hear(self, rank: int, report: Report) -> list[Act]:
        """Handle an agent's report, if it is about pushed rows."""
        match report:
            case reports.Receiving():
                self.receiving(rank, report)
            case reports.Streamed():
                found: list[Act] = [
                    Count(name, rank, DatasetCounts(**counts))
                    for name, counts in report.counts.items()
                ]
                if (reason := self.contradiction(report)) is not None:
                    found.append(Unfit(reason))
                return [*found, *map(SendAll, self.streamed(rank, report))]
            case reports.FeedingStopped():
                return [*map(SendAll, self.end())]
            case reports.SectionTrained():
                self.trained(rank, report)
        return []

    def receiving(self, rank: int, report: Receiving) -> None:
        """Note where to send a rank's rows."""
        self._addresses.setdefault(report.stream, {})[rank] = report.address
        if report.together:
            self._together.add(report.stream)

    def receivers(self, stream: str) -> tuple[str, ...] | None:
        """Return the addresses by rank; None while some rank isn't ready, empty after the end."""
        if self._has_ended:
            return ()
        if self.silent(stream):
            return None
        return tuple(self._addresses[stream][rank] for rank in self._ranks)

    def silent(self, stream: str) -> list[int]:
        """Return the ranks that don't receive a stream."""
        known = self._addresses.get(stream, {})
        return [rank for rank in self._ranks if rank not in known]

    def end(self) -> list[Command]:
        if self._has_ended:
            return []
        self._has_ended = True
        return self._ends()

    def contradiction(self, report: Streamed) -> str | None:
        """Return the contradiction between a rank's rows and another's, or None."""
        found = (self._specs.add(name, specs) for name, specs in report.specs.items())
        return next((reason for reason in found if reason is not None), None)

    def streamed(self, rank: int, report: Streamed) -> list[Command]:
        """Note what a rank has received; return what to tell all ranks."""
        if report.generation != self._generation or rank not in self._ranks:
            return []
        self._heard[rank] = report
        standing = self._standing()
        if standing is None or standing == self._told:
            return []
        self._told = standing
        return [standing]

    def part(self) -> list[Command]:
        """Divide the streams into sections: no checkpoint is made within one."""
        self._label = self._label or ""
        return self._ends()

    def end_section(self, label: str) -> list[Command]:
        self._sections, self._label = self._sections + 1, label
        return self._ends()

    def _ends(self) -> list[Command]:
        return [commands.EndRows(self._sections, self._label, self._has_ended)]

    def trained(self, rank: int, report: SectionTrained) -> None:
        """Note that a rank has trained on all of a section."""
        if report.generation == self._generation:
            self._trained[rank] = report

    @property
    def is_trained(self) -> bool:
        """Whether all ranks have trained on the last section without a checkpoint to come."""
        done = [self._trained.get(rank) for rank in self._ranks]
        return all(
            each is not None and each.section + 1 == self._sections and not each.is_saved
            for each in done
        )

    def _standing(self) -> commands.StreamStanding | None:
        section, certain, counts, previous = {}, {}, {}, {}
        repeats: dict[str, bool] = {}
        if len(self._heard) < len(self._ranks):
            return None
        heard = [self._heard[rank] for rank in self._ranks]
        for name in self._together:
            if any(name not in each.rows for each in heard):
                continue
            ends = [{n: rows for n, rows in each.ends[name]} for each in heard]  # noqa: C416 (lists of two)
            first = heard[0].first[name]
            now = min(max(each, default=first - 1) + 1 for each in ends)
            base = [0 if now == first else each[now - 1] for each in ends]
            rows = [each.rows[name] - at for each, at in zip(heard, base, strict=True)]
            # If a rank's section has already ended, later rows don't belong to it.
            rows = [
                min(have, each[now] - at) if now in each else have
                for have, each, at in zip(rows, ends, base, strict=True)
            ]
            section[name], certain[name] = now, min(rows)
            if all(each.ended for each in heard):
                counts[name] = rows
            repeats[name] = all(each.rows[name] for each in heard)
            if now > first:
                repeats[name] = all(base)
                start = [0 if now - 1 == first else each[now - 2] for each in ends]
                previous[name] = [at - was for at, was in zip(base, start, strict=True)]
        if not section:
            return None
        return commands.StreamStanding(
            self._generation, section, certain, counts, previous, repeats
        )
