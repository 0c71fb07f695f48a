"""Who has stopped: agents without heartbeats, and ranks without steps. Pure.

An agent counts as lost ``Deadlines.heartbeat`` after it was last heard of. Ranks have two
deadlines: ``Deadlines.step``, while a step is due, and twice ``Deadlines.heartbeat``,
when a step needs all ranks and one of them has stopped taking part. Before either counts, the
processes are asked for their stacks: reports come only now and then, and a callback between two
steps may take as long as it likes. A process whose agent can't be reached hasn't been asked: that
it is silent is the agent's, for which there is another deadline.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gridflow._coordinator.policies import stuck_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


#: The activity of a rank that is done with its function.
RETURNED: Final = "has returned from the function"
#: Time for the processes to report their stacks, once their agents are reached.
_ANSWER_SECONDS: Final = 1.5
#: In heartbeats: what a rank sent before it stopped taking part may still be on its way. After a
#: cut of the network, TCP sends it again only after up to as much time again, as it doubles its
#: pauses. An agent may be cut off for one heartbeat.
_PATIENCE: Final = 2


@dataclass(frozen=True)
class Stuck:
    """The rank that failed to make a step, a description, and the stacks of all ranks."""

    rank: int
    summary: str
    stacks: Mapping[int, str]


class Ask:
    """Ask the processes for their stacks."""


class StepWatch:
    """The steps of one generation.

    `awaited`: The ranks that are watched.
    `tasks`: The names of all tasks.
    """

    def __init__(
        self,
        members: Sequence[Member],
        awaited: Sequence[int],
        tasks: Sequence[str],
        deadlines: Deadlines,
    ) -> None:
        self._members, self._awaited, self._tasks = members, tuple(awaited), tasks
        self._looked_after = frozenset(awaited)
        self._limit, self._patience = deadlines.step, _PATIENCE * deadlines.heartbeat
        self._late, self._left = Alarms(self._late_at), Alarms(self._left_at)
        #: By rank, what it does instead of steps.
        self._absent: dict[int, str] = {}
        self._asked_at: float | None = None
        self._answers_until = 0.0
        self._looked_at: dict[int, float] = {}

    def stepped(self, rank: int) -> None:
        """Note that a member made a step, or that one is due."""
        self._late.watch(rank)
        self._left.watch(rank)

    def absent(self, rank: int, doing: str) -> None:
        """Note that a rank has stopped taking part in steps; empty: it takes part again."""
        if doing and rank in self._looked_after:
            self._absent[rank] = doing
        else:
            self._absent.pop(rank, None)

    def is_absent(self, rank: int) -> bool:
        """Return whether a rank doesn't take part in steps: it waits elsewhere, or is done."""
        return rank in self._absent

    def check(self, at: float) -> Ask | Stuck | None:
        """Return what to do about ranks that make no steps."""
        late = self._late.due(at)
        left = [rank for rank in self._left.due(at) if rank not in late] if self._absent else []
        left = [rank for rank in left if self._absent.keys() - {rank}]
        if not late and not left:
            if self._asked_at is not None:  # they moved on meanwhile
                self._forget()
            return None
        if self._asked_at is None:
            self._forget()  # an answer that came late says nothing about now
            self._asked_at, self._answers_until = at, at + _ANSWER_SECONDS
            return Ask()
        silent = [m for m in map(self._members.__getitem__, self._awaited) if m.stack is None]
        if any(not m.lost and m.last_heard <= self._asked_at for m in silent):
            self._answers_until = at + _ANSWER_SECONDS
        if silent and at < self._answers_until:
            return None
        found = self._stuck(late) if late else self._forsaken(at, left)
        self._forget()
        return found

    def _late_at(self, rank: int) -> float | None:
        member = self._members[rank]
        if not self._limit or not member.armed or rank not in self._looked_after:
            return None
        return member.last_step + self._limit

    def _left_at(self, rank: int) -> float | None:
        member = self._members[rank]
        if not member.armed or not member.together or rank not in self._looked_after:
            return None
        return max(member.last_step, self._looked_at.get(rank, 0.0)) + self._patience

    def _forget(self) -> None:
        self._asked_at = None
        for member in self._members:
            member.stack, member.in_step = None, False

    def _stuck(self, late: Sequence[int]) -> Stuck:
        present = [rank for rank in self._awaited if rank not in self._absent] or late
        stands = [self._members[rank] for rank in present]
        rank = present[stuck_rank([(m.waiting, m.stack, m.last_step) for m in stands])]
        words = f"made no step for {self._limit:g} seconds (Deadlines.step)"
        return self._found(rank, words)

    def _forsaken(self, at: float, left: Sequence[int]) -> Stuck | None:
        """Return a rank that waits in a step for one that has stopped taking part."""
        for rank in left:
            self._looked_at[rank] = at
        stuck = [rank for rank in left if self._members[rank].in_step]
        if not stuck:
            return None
        words = f"made no step for {self._patience:g} seconds"
        return self._found(stuck[0], words)

    def _found(self, rank: int, words: str) -> Stuck:
        stacks = {each: self._members[each].stack or "" for each in self._awaited}
        return Stuck(rank, words + self._whom(rank), stacks)

    def _whom(self, rank: int) -> str:
        others = [f"{self._tasks[peer]} {what}" for peer, what in self._absent.items()]
        if rank in self._absent or not others or not self._members[rank].together:
            return ""
        more = f" and {len(others) - 1} more like it" if len(others) > 1 else ""
        return f": its steps need all ranks, but {others[0]}{more}"
