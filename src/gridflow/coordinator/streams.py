"""How far the streams of pushed rows have come on all ranks: without I/O, clock or threads.

::

    OPENING --all ranks receive--> OPEN --end()--> ENDING --all ranks have said so--> ENDED

What all ranks are told is ``certain``, the rows that each of them has got since the generation
began. It only grows, so ranks may hear of it at different times; in the end it becomes the counts
of all ranks, from which follows which steps are left (`gridflow.feed.stream_plan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow.wire import commands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow.wire.commands import Command
    from gridflow.wire.reports import Receiving, Streamed


class Streams:
    """The streams of one launch.

    Parameters
    ----------
    ranks : sequence of int
        Places of the tasks that rows go to.
    was : Streams, optional
        Those of the launch before: what has ended stays so.
    """

    def __init__(self, ranks: Sequence[int], was: Streams | None = None) -> None:
        self._ranks = tuple(ranks)
        self._generation = 0
        self._has_ended = was is not None and was.has_ended
        self._addresses: dict[str, dict[int, str]] = {}
        self._together: set[str] = set()
        self._rows: dict[int, dict[str, int]] = {}
        self._done: set[int] = set()
        self._told: commands.StreamStanding | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no more rows are to come."""
        return self._has_ended

    def begin_generation(self, generation: int) -> list[Command]:
        """Forget what the ranks have said in the generation before."""
        self._generation, self._rows, self._told = generation, {}, None
        self._done = set()
        return [commands.EndStreams()] if self._has_ended else []

    def receiving(self, rank: int, report: Receiving) -> None:
        """Take note of where a rank's rows can be sent to."""
        self._addresses.setdefault(report.stream, {})[rank] = report.address
        if report.together:
            self._together.add(report.stream)

    def receivers(self, stream: str) -> tuple[str, ...] | None:
        """Return the addresses by rank; None while some rank isn't ready, empty after the end."""
        if self._has_ended:
            return ()
        if self.silent(stream):
            return None
        return tuple(self._addresses[stream][rank] for rank in self._ranks)

    def silent(self, stream: str) -> list[int]:
        """Return the ranks that don't receive a stream."""
        known = self._addresses.get(stream, {})
        return [rank for rank in self._ranks if rank not in known]

    def end(self) -> list[Command]:
        """Let no more rows come."""
        if self._has_ended:
            return []
        self._has_ended = True
        return [commands.EndStreams()]

    def streamed(self, rank: int, report: Streamed) -> list[Command]:
        """Take note of what a rank has got; return what all have to know now."""
        if report.generation != self._generation or rank not in self._ranks:
            return []
        self._rows[rank] = report.rows
        if report.ended:
            self._done.add(rank)
        standing = self._standing()
        if standing is None or standing == self._told:
            return []
        self._told = standing
        return [standing]

    def _standing(self) -> commands.StreamStanding | None:
        certain, counts = {}, {}
        for name in self._together:
            rows = [self._rows.get(rank, {}).get(name, 0) for rank in self._ranks]
            certain[name] = min(rows)
            if len(self._done) == len(self._ranks):
                counts[name] = rows
        if not certain or not (any(certain.values()) or counts):
            return self._told
        return commands.StreamStanding(self._generation, certain, counts)
