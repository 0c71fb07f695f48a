"""Positions of rows that have and haven't arrived. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Ranges", "deal"]


class Ranges:
    """A set of positions, stored as ranges that neither touch nor overlap.

    `ranges`: First position, and the position after the last.

    Examples
    --------
    >>> ranges = Ranges([(0, 5), (10, 20), (5, 7)])
    >>> list(ranges), list(ranges.missing(3, 12))
    ([(0, 7), (10, 20)], [(7, 10)])
    """

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, stop in ranges:
            self.add(first, stop)

    def add(self, first: int, stop: int) -> None:
        """Add the positions from `first` up to, but excluding, `stop`."""
        if first >= stop:
            return
        apart = []
        for begin, end in self._ranges:
            if end < first or begin > stop:
                apart.append((begin, end))
            else:
                first, stop = min(first, begin), max(stop, end)
        self._ranges = sorted([*apart, (first, stop)])

    def missing(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges between `first` and `stop` that aren't in the set."""
        for begin, end in self._ranges:
            if end <= first:
                continue
            if begin >= stop:
                break
            if begin > first:
                yield first, begin
            first = end
        if first < stop:
            yield first, stop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def __len__(self) -> int:
        """Return the number of positions in the set."""
        return sum(end - begin for begin, end in self._ranges)


def deal(rows: int, pending: dict[int, int]) -> dict[int, int]:
    """Return how many rows each agent gets so that the waiting rows become equal.

    `pending` (dict of agent to int): Rows waiting at each agent.
    Returns: The agent with the most room first; without those that get none.

    Examples
    --------
    >>> deal(10, {0: 8, 1: 2, 2: 4})
    {1: 6, 2: 4}
    """
    order = sorted(pending, key=lambda agent: (pending[agent], agent))
    number, below = 0, 0
    for number, agent in enumerate(order, 1):
        below += pending[agent]
        if number == len(order) or rows + below <= number * pending[order[number]]:
            break
    level, higher = divmod(rows + below, number)
    shares = {
        agent: level + (place < higher) - pending[agent]
        for place, agent in enumerate(order[:number])
    }
    return {agent: share for agent, share in shares.items() if share > 0}
