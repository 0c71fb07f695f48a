"""When an agent counts as lost: ``Deadlines.heartbeat`` after it was last heard of. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridflow._coordinator.alarms import Alarms

if TYPE_CHECKING:
    from collections.abc import Sequence

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
