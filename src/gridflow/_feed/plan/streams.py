"""How far ranks may go on pushed rows, and how such a stream ends. Pure.

All ranks run equal steps, on rows that arrive unevenly and without a known end. What is known only
grows: ``certain``, the rows that every rank has received, and at the end the counts of all.

* Before the end, ``certain // batch_size`` steps may be made, each with a full batch: a rank
  without rows makes all ranks wait.
* At the end, all ranks run as many full batches as the shortest rank has, and the remaining rows of
  each are spread over further steps, as `tail` says. A rank without remaining rows repeats its last
  ones. If a rank has never had any rows, no more steps are made.

The former never exceeds the latter, so ranks needn't learn of anything at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._feed.plan.grants import ArrivingGrant

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.plan.grants import Standing

__all__ = ["StreamGrant", "full_steps", "granted", "last_steps"]


def full_steps(counts: Sequence[int], batch_size: int) -> int:
    """Return the number of steps with full batches on all ranks.

    Examples
    --------
    >>> full_steps([70, 64], 32)
    2
    """
    return min(counts) // batch_size


def last_steps(counts: Sequence[int], batch_size: int, tail: Tail, *, repeats: bool = True) -> int:
    """Return the number of steps after the full ones, once no more rows will come.

    None if not all ranks have rows to repeat.

    Examples
    --------
    >>> last_steps([70, 64], 32, "spread"), last_steps([70, 64], 32, "drop")
    (1, 0)
    >>> last_steps([70, 0], 32, "spread"), last_steps([70, 0], 32, "spread", repeats=False)
    (3, 0)
    """
    if tail == "drop" or not repeats:
        return 0
    return -(-(max(counts) - full_steps(counts, batch_size) * batch_size) // batch_size)


def granted(standing: Standing, batch_size: int, tail: Tail) -> int:
    """Return how many steps of a section may be made."""
    if standing.counts is None:
        return standing.certain // batch_size
    return full_steps(standing.counts, batch_size) + last_steps(
        standing.counts, batch_size, tail, repeats=standing.repeats
    )


class StreamGrant(ArrivingGrant):
    """The grant of pushed rows, section by section.

    A stream without sections is one section. Steps are counted from the start of a section.

    `look`: Returns the current `Standing` of a section, and whether it is the last.
    `wait_for`, `batch_size`, `tail`: See `ArrivingGrant`.
    `section`: The first section.
    `own`: Index of this rank in the counts.
    """

    def __init__(
        self,
        look: Callable[[int], tuple[Standing, bool]],
        wait_for: Callable[[Callable[[], bool], float | None], bool],
        *,
        section: int,
        own: int,
        batch_size: int,
        tail: Tail,
    ) -> None:
        super().__init__(lambda: look(self.section)[0], wait_for, batch_size=batch_size, tail=tail)
        self._look_at = look
        self.section, self.own = section, own

    def another(self) -> StreamGrant:
        """Return a new grant with the same start, for another reader."""
        return StreamGrant(
            self._look_at,
            self._wait_for,
            section=self.section,
            own=self.own,
            batch_size=self._batch_size,
            tail=self._tail,
        )

    @property
    def is_last(self) -> bool:
        """Whether this section is complete and is the last one."""
        standing, is_last = self._look_at(self.section)
        return is_last and standing.counts is not None

    def advance(self) -> int:
        """Advance to the next section; return this rank's rows in the current one."""
        rows = self.counts()[self.own]
        self.section += 1
        return rows

    def full(self) -> int:
        """Return the number of steps with full batches, once no more rows will come."""
        return full_steps(self.counts(), self._batch_size)

    def _granted(self) -> int:
        return granted(self._look(), self._batch_size, self._tail)
