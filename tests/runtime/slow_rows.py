"""A launcher on plain processes whose ranks get their rows slowly, late, or unevenly."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow import LocalLauncher
from gridflow._feed.ingest.base import RankRows
from gridflow.errors import DataError
from suite.waiting import wait_for

if TYPE_CHECKING:
    from gridflow._feed.ingest.arrays import ArraySource


@dataclass(frozen=True)
class Pace:
    """How rows come to a rank.

    Attributes
    ----------
    late, pause : float
        Seconds before the first and between two batches.
    rows : int
        In a batch.
    stops_after : int or None
        Batches after which the source fails.
    starts_with, holds_until : str
        Files that have to be there before the first and before the last batch comes.
    """

    late: float = 0.0
    pause: float = 0.0
    rows: int = 5000
    stops_after: int | None = None
    starts_with: str = ""
    holds_until: str = ""


@dataclass(frozen=True)
class SlowRows(RankRows):
    """The rows of one rank, batch by batch."""

    rows: RankRows
    pace: Pace

    def batches(self, arriving=()):
        """Yield them."""
        pace = self.pace
        if pace.starts_with:
            wait_for(Path(pace.starts_with).exists, "the word to start")
        time.sleep(pace.late)
        sent = 0
        for name, batch in self.rows.batches(arriving):
            for start in range(0, batch.num_rows, pace.rows):
                if sent == pace.stops_after:
                    raise DataError(f"the source of {name!r} broke off after {sent} batches")
                if pace.holds_until and start + pace.rows >= batch.num_rows:
                    wait_for(Path(pace.holds_until).exists, "the word to go on")
                yield name, batch.slice(start, pace.rows)
                sent += 1
                time.sleep(pace.pause)


@dataclass
class SlowSource:
    """An `ArraySource` with a pace for each rank, and a share of the rows."""

    source: ArraySource
    paces: tuple[Pace, ...]
    shares: tuple[int, ...] = field(default=())

    def __getattr__(self, name):
        return getattr(self.source, name)

    def deal(self, num_ranks, folder, kept=()):
        """Deal the rows out, in the ratio of the shares."""
        shares = self.shares or (1,) * num_ranks
        parts = self.source.deal(sum(shares), folder, kept)
        dealt, at = [], 0
        for share, pace in zip(shares, self.paces, strict=True):
            dealt.append(SlowRows(Joined(tuple(parts[at : at + share])), pace))
            at += share
        return dealt


@dataclass(frozen=True)
class Joined(RankRows):
    """The rows of several parts, one after the other."""

    parts: tuple[RankRows, ...]

    def batches(self, arriving=()):
        """Yield them."""
        for part in self.parts:
            yield from part.batches(arriving)


class SlowLauncher(LocalLauncher):
    """Plain processes that get their rows at a pace."""

    def __init__(self, *paces, shares=()):
        super().__init__()
        self.paces, self.shares = paces, shares

    def for_job(self):
        """Return one that has launched nothing."""
        return SlowLauncher(*self.paces, shares=self.shares)

    def _source_of(self, data):
        return SlowSource(super()._source_of(data), self.paces, self.shares)
