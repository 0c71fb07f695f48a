"""When an agent counts as lost: ``Deadlines.heartbeat`` after it was last heard of. Pure."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._coordinator.events import DriverStoodStill
    from gridflow._coordinator.member import Member
    from gridflow._spec.option_groups import Deadlines


class LostAgents:
    """The agents of one generation."""

    def __init__(self, members: Sequence[Member], deadlines: Deadlines) -> None:
        self._members, self._deadlines = members, deadlines
        self._silence = Alarms(self._silent_at)
        for rank in range(len(members)):
            self._silence.watch(rank)

    def watch(self, rank: int) -> None:
        """Watch an agent from now on, if it isn't watched."""
        self._silence.watch(rank)

    def next_lost(self, at: float) -> int | None:
        """Return the first agent that counts as lost from now on, None if there is none."""
        return next(iter(self._silence.due(at)), None)

    def give_up_on_silent(self, at: float) -> None:
        """Count all silent agents that have yet to clear up as lost."""
        for member in self._members:
            silent = at - member.last_heard > self._deadlines.heartbeat
            member.lost = member.lost or (silent and not member.cleared)

    @property
    def longest_silent(self) -> int:
        """The agent that was not heard of for the longest time."""
        heard = [member.last_heard for member in self._members]
        return heard.index(min(heard))

    @property
    def reason(self) -> str:
        """Why an agent counts as lost."""
        limit = self._deadlines.heartbeat
        return f"no heartbeat from its agent for {limit:g} seconds (Deadlines.heartbeat)"

    def excuse(self, at: float, pause: DriverStoodStill | None) -> str:
        """Return what is to be added to the reason, if the driver itself was silent before."""
        if pause is None or at - pause.at >= 2 * self._deadlines.heartbeat:
            return ""
        return (
            f". The driver itself had stood still for {pause.seconds:.0f} seconds; agents wait "
            f"{self._deadlines.driver:g} seconds for a silent driver"
        )

    def _silent_at(self, rank: int) -> float | None:
        member = self._members[rank]
        if not member.agent or member.lost:
            return None
        return member.last_heard + self._deadlines.heartbeat


# Deadlines of many ranks that are postponed often, at a cost that hardly depends on their number.
#
# Postponing one costs nothing: the new time is looked up when the old one is reached.


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
