"""The fits of all ranks: where the chief writes, and whether all start from the same state. Pure.

Ranks that restored something other than the chief would average gradients of different models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridflow._wire import commands

if TYPE_CHECKING:
    from gridflow._wire.ranks import FitBegins, FitStarts


@dataclass
class _Fit:
    #: Where the chief writes; set once it has begun.
    paths: list[str] | None = None
    waiting: list[int] = field(default_factory=list)
    #: The first rank that started, with its epoch and number of updates.
    start: tuple[int, int, int] | None = None


class Fits:
    """The fits of one generation.

    Parameters
    ----------
    generation : int
    """

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._fits: dict[int, _Fit] = {}

    def begins(self, rank: int, report: FitBegins) -> list[tuple[int, commands.ChiefWrites]]:
        """Note that a rank begins a fit; return whom to tell where the chief writes."""
        if report.generation != self._generation:
            return []
        fit = self._fit(report.fit)
        if rank == 0:
            fit.paths = report.writes
        else:
            fit.waiting.append(rank)
        if fit.paths is None:
            return []
        told = commands.ChiefWrites(self._generation, report.fit, fit.paths)
        ranks, fit.waiting = fit.waiting, []
        return [(rank, told) for rank in ranks]

    def starts(self, rank: int, report: FitStarts) -> str:
        """Note where a rank starts; return what is wrong with it, or an empty string."""
        if report.generation != self._generation:
            return ""
        fit = self._fit(report.fit)
        here = report.epoch, report.updates
        if fit.start is None:
            fit.start = (rank, *here)
        peer, *there = fit.start
        if tuple(there) == here:
            return ""
        mine, theirs = _place(*here), _place(*there)
        return f"its fit starts at {mine}, but rank {peer}'s at {theirs}"

    def _fit(self, number: int) -> _Fit:
        if number not in self._fits:
            self._fits[number] = _Fit()
            # A rank in a fit has seen all others in the previous one.
            self._fits.pop(number - 2, None)
        return self._fits[number]


def _place(epoch: int, updates: int) -> str:
    return f"epoch {epoch} after {updates} updates"
