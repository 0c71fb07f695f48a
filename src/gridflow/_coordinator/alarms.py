"""Deadlines of many ranks that are postponed often, at a cost that hardly depends on their number.

Postponing one costs nothing: the new time is looked up when the old one is reached.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarms:
    """A heap of times, one for each watched rank.

    `due_at`: Returns when a rank is due; None: stop watching it.
    """

    def __init__(self, due_at: Callable[[int], float | None]) -> None:
        self._due_at = due_at
        self._heap: list[tuple[float, int]] = []
        self._watched: set[int] = set()

    def watch(self, rank: int) -> None:
        at = self._due_at(rank)
        if at is not None and rank not in self._watched:
            self._watched.add(rank)
            heapq.heappush(self._heap, (at, rank))

    def due(self, now: float) -> list[int]:
        """Return the ranks that are overdue, in order. They stay watched."""
        found: list[tuple[float, int]] = []
        while self._heap and self._heap[0][0] < now:
            _, rank = heapq.heappop(self._heap)
            at = self._due_at(rank)
            if at is None:
                self._watched.discard(rank)
            elif at < now:
                found.append((at, rank))
            else:
                heapq.heappush(self._heap, (at, rank))
        for entry in found:
            heapq.heappush(self._heap, entry)
        return sorted(rank for _, rank in found)
