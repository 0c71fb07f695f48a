"""Who may bring the rows of a partition, and which of them have come.

A Spark task may be tried again, or have a copy beside it. Whoever takes rows keeps this account.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from gridflow._feed.push.ranges import Ranges

if TYPE_CHECKING:
    from collections.abc import Callable

P = TypeVar("P", bound="Partition")

#: Partitions whose rows are known to have come. A stream has ever new ones: the oldest, whose Spark
#: jobs have long ended, are forgotten.
REMEMBERED: Final = 100_000


class Superseded(Exception):
    """The same partition is being sent by a later attempt, or nobody takes it any more."""


class PartitionAttempt(NamedTuple):
    """One of the tries to send a partition.

    Attributes
    ----------
    stage, partition : int
        What Spark knows the rows by.
    number : int
        Greater than that of any try before it.
    """

    stage: int
    partition: int
    number: int

    @classmethod
    def of_this_task(cls) -> PartitionAttempt | None:
        """Return that of the Spark task that this process runs; None if it runs none."""
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is None:
            return None
        return cls(task.stageId(), task.partitionId(), task.taskAttemptId())

    def header(self, feed: str) -> dict[str, Any]:
        """Return what those who take the rows are told; of one feed the partition is enough."""
        return {"feed": feed, "partition": self.partition, "attempt": self.number}


class Partition:
    """How far a partition has come.

    Attributes
    ----------
    attempt : int
        The newest to send it; -1 before the first.
    ranges : Ranges
        The places of the rows that have come.
    """

    def __init__(self) -> None:
        self.attempt = -1
        self.ranges = Ranges()

    def begin(self, attempt: int) -> None:
        """Let an attempt begin: those before it are `Superseded` from now on."""
        self.check(attempt)
        self.attempt = attempt

    def check(self, attempt: int) -> None:
        """Refuse an attempt that isn't the newest: `Superseded`."""
        if self.attempt > attempt:
            raise Superseded(f"attempt {attempt} is over: {self.attempt} has started.")


class Partitions(Generic[P]):
    """The partitions that were begun lately, by feed and number; new ones are made."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._found: OrderedDict[tuple[str, int], P] = OrderedDict()

    def __getitem__(self, key: tuple[str, int]) -> P:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._make()
        self._found.move_to_end(key)
        if len(self._found) > REMEMBERED:
            self._found.popitem(last=False)
        return found
