"""Tracks who may send the rows of a partition, and which have arrived.

A Spark task may be retried, or have a speculative copy. Receivers of rows use this bookkeeping.
Which rows have arrived is a list of ranges. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

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


#: Number of partitions to remember. A stream always has new ones: the oldest, whose Spark jobs have
#: long ended, are forgotten.
REMEMBERED: Final = 100_000


class Superseded(Exception):
    """A later attempt sends the same partition, or nobody receives it any more."""


class PartitionAttempt(NamedTuple):
    """One of the tries to send a partition.

    Attributes
    ----------
    stage, partition : int
        Spark's identification of the rows.
    number : int
        Greater than that of any try before it.
    """

    stage: int
    partition: int
    number: int

    @classmethod
    def of_this_task(cls) -> PartitionAttempt | None:
        """Return the attempt of the Spark task in this process, or None."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            return None
        return cls(task.stageId(), task.partitionId(), task.taskAttemptId())


class Partition:
    """The progress of a partition.

    `attempt`: The newest attempt; -1 before the first.
    `ranges`: The positions of the rows that have arrived.
    `end`: How many rows of any partition had arrived with the last of them.
    """

    def __init__(self) -> None:
        self.attempt = -1
        self.ranges = Ranges()
        self.end = 0

    def begin(self, attempt: int) -> None:
        """Start an attempt; earlier ones are `Superseded` from now on."""
        self.check(attempt)
        self.attempt = attempt

    def check(self, attempt: int) -> None:
        """Raise `Superseded` for an attempt that isn't the newest."""
        if self.attempt > attempt:
            raise Superseded(f"attempt {attempt} is over: {self.attempt} has started.")


class Partitions:
    """The most recent partitions, by feed and number; creates new ones on demand."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[str, int], Partition] = OrderedDict()

    def __getitem__(self, key: tuple[str, int]) -> Partition:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Partition()
        self._found.move_to_end(key)
        if len(self._found) > REMEMBERED:
            self._found.popitem(last=False)
        return found
