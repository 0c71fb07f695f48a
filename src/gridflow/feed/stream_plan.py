"""How far ranks may go on rows that are pushed, and how such a stream ends. Pure.

All ranks make equal steps, on rows that come to them unevenly and without a known end. What is
known only grows: ``certain``, the rows that every rank has got, and at the end the counts of all.

* Before the end ``certain // batch_size`` steps may be made, each with a full batch: a rank
  without rows lets all wait.
* At the end the shortest rank's full batches are made on all ranks, and what each has beyond them
  is dealt out to the steps that are left, as `tail` says. A rank that has nothing beyond them
  repeats its last rows. Where a rank has never had any, no more steps are made.

The former never exceeds the latter, so ranks needn't hear of anything at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow.feed.arrivals import Arrivals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow.feed.batches import Tail

__all__ = ["StreamArrivals", "full_steps", "last_steps"]


def full_steps(counts: Sequence[int], batch_size: int) -> int:
    """Return how many steps have full batches on all ranks.

    Examples
    --------
    >>> full_steps([70, 64], 32)
    2
    """
    return min(counts) // batch_size


def last_steps(counts: Sequence[int], batch_size: int, tail: Tail) -> int:
    """Return how many steps come after those, once no more rows will.

    Examples
    --------
    >>> last_steps([70, 64], 32, "spread"), last_steps([70, 64], 32, "drop")
    (1, 0)
    >>> last_steps([70, 0], 32, "spread")
    0
    """
    if tail == "drop" or not min(counts):
        return 0
    return -(-(max(counts) - full_steps(counts, batch_size) * batch_size) // batch_size)


class StreamArrivals(Arrivals):
    """What a training process knows of the rows that are pushed; see `Arrivals`.

    Steps are counted from the generation's beginning.
    """

    def steps(self) -> int:
        """Return the steps of the stream, when no more rows will come."""
        counts = self.counts()
        return full_steps(counts, self._batch_size) + last_steps(
            counts, self._batch_size, self._tail
        )

    def full(self) -> int:
        """Return how many of the steps have full batches, when no more rows will come."""
        return full_steps(self.counts(), self._batch_size)

    def _knows(self, step: int) -> bool:
        standing = self._look()
        return standing.counts is not None or step < standing.certain // self._batch_size

    def _granted(self) -> int:
        if self.are_complete:
            return self.steps()
        return self._look().certain // self._batch_size
