"""Where a fit ends that some ranks want to end: at the last point that any of them named. Pure.

See `gridflow._keras.stopping`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._wire import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._wire.ranks import CanStop

#: Named by a rank that isn't in the fit.
_NOWHERE = -1


class Stops:
    """The ends of the fits of one generation.

    Parameters
    ----------
    generation : int
    members : sequence of int
        Ranks that train.
    """

    def __init__(self, generation: int, members: Sequence[int]) -> None:
        self._generation, self._members = generation, tuple(members)
        self._fit, self._points = -1, dict[int, int]()
        self._is_asked = False
        self._left: set[int] = set()

    def named(self, rank: int, report: CanStop) -> list[tuple[int, commands.Command]]:
        """Note the point that a rank has named; return whom to ask or tell."""
        if report.generation != self._generation or report.fit < self._fit:
            return []
        if report.fit > self._fit:
            self._fit, self._points, self._is_asked = report.fit, {}, False
        self._points[rank] = report.point
        told: list[tuple[int, commands.Command]] = []
        if report.wants and not self._is_asked:
            self._is_asked = True
            question = commands.AskToStop(self._generation, self._fit)
            told = [(peer, question) for peer in self._members if peer not in self._points]
        return told + self._settle()

    def left(self, rank: int, generation: int) -> list[tuple[int, commands.Command]]:
        """Note that a rank has left its fits for good."""
        if generation != self._generation:
            return []
        self._left.add(rank)
        return self._settle()

    def _settle(self) -> list[tuple[int, commands.Command]]:
        known = {**dict.fromkeys(self._left, _NOWHERE), **self._points}
        if not self._is_asked or any(rank not in known for rank in self._members):
            return []
        self._is_asked = False
        end = commands.StopAt(self._generation, self._fit, max(known.values()))
        ranks = [rank for rank, point in self._points.items() if point != _NOWHERE]
        self._points = {}
        return [(rank, end) for rank in ranks]
