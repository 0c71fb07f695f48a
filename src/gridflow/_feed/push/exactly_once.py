"""Tracks who may send the rows of a partition, and which have arrived.

A Spark task may be retried, or have a speculative copy. Receivers of rows use this bookkeeping.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from gridflow._feed.push.ranges import Ranges

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
