"""The fits of all ranks: where the chief writes, and whether all train one model. Pure.

Ranks that restored something other than the chief, or whose weights or learning rate something has
changed on that rank alone, would average gradients of different models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._wire import commands

if TYPE_CHECKING:
    from gridflow._wire.ranks import FitBegins, FitStands

#: How far numbers of two ranks may be apart: their processors may round differently in each step.
_TOLERANCE: Final = 1e-3
#: The same for weights that are almost zero.
_SMALLEST: Final = 1e-6


@dataclass
class _Fit:
    #: Where the chief writes; set once it has begun.
    paths: list[str] | None = None
    waiting: list[int] = field(default_factory=list)
    #: The first rank that started, and those that were first at the ends of the last epochs.
    start: tuple[int, FitStands] | None = None
    ends: dict[int, tuple[int, FitStands]] = field(default_factory=dict)


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

    def stands(self, rank: int, report: FitStands) -> str:
        """Note where a rank stands; return how it differs from the first there, or nothing."""
        if report.generation != self._generation:
            return ""
        fit = self._fit(report.fit)
        if report.starts:
            fit.start = fit.start or (rank, report)
            peer, there = fit.start
        else:
            peer, there = fit.ends.setdefault(report.epoch, (rank, report))
            fit.ends.pop(report.epoch - 2, None)  # all ranks have ended it by now
        mine, theirs = _place(report), _place(there)
        if report.starts and mine != theirs:
            return f"its fit starts at {mine}, but rank {peer}'s at {theirs}"
        difference = _difference(report, there, peer)
        return difference and f"at {mine}, {difference}"

    def _fit(self, number: int) -> _Fit:
        if number not in self._fits:
            self._fits[number] = _Fit()
            # A rank in a fit has seen all others in the previous one.
            self._fits.pop(number - 2, None)
        return self._fits[number]


def _place(report: FitStands) -> str:
    return f"epoch {report.epoch} after {report.updates} updates"


def _difference(mine: FitStands, theirs: FitStands, peer: int) -> str:
    if len(mine.weights) != len(theirs.weights):
        return f"it trains {len(mine.weights)} weights, but rank {peer} {len(theirs.weights)}"
    for rate, other in zip(mine.rates, theirs.rates, strict=False):
        if _are_apart(rate, other, abs(other)):
            return f"its learning rate is {rate:.6g}, but rank {peer}'s {other:.6g}"
    for here, there in zip(mine.weights, theirs.weights, strict=True):
        name, total, norm = here
        scale = max(norm, there[2], _SMALLEST)
        if _are_apart(total, there[1], scale) or _are_apart(norm, there[2], scale):
            return (
                f"its weight {name!r} has the norm {norm:.6g} and the sum {total:.6g}, but rank "
                f"{peer}'s {there[2]:.6g} and {there[1]:.6g}"
            )
    return ""


def _are_apart(here: float, there: float, scale: float) -> bool:
    """Return whether numbers differ by more than rounding; those that aren't finite don't."""
    return math.isfinite(here) and math.isfinite(there) and abs(here - there) > _TOLERANCE * scale
