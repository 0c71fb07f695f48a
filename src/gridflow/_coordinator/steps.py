"""Who makes no step any more, and whom that hangs on. Pure.

Two deadlines: ``Deadlines.step``, while a step is due; and ``Deadlines.heartbeat``, where a step
takes all ranks and one of them takes part in none any more. Either is certain only once the
processes were asked where they stand: their signs come now and then, and between two steps a
callback may take as long as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gridflow._coordinator.alarms import Alarms
from gridflow._coordinator.policies import stuck_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._coordinator.member import Member
    from gridflow._spec.option_groups import Deadlines

#: What a rank does that is done with its function.
RETURNED: Final = "has returned from the function"
#: For the processes to say where they stand.
_ANSWER_SECONDS: Final = 1.5


@dataclass(frozen=True)
class Stuck:
    """The rank that failed to make a step, what is to be said of it, and its stack."""

    rank: int
    summary: str
    stack: str


class Ask:
    """The processes are to be asked where they stand."""


class StepWatch:
    """The steps of one generation.

    Parameters
    ----------
    members : sequence of Member
    awaited : sequence of int
        The ranks that are looked after.
    tasks : sequence of str
        Their names, and those of all others.
    deadlines : Deadlines
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
        self._limit, self._patience = deadlines.step, deadlines.heartbeat
        self._late, self._left = Alarms(self._late_at), Alarms(self._left_at)
        #: Rank to what it does instead of steps.
        self._absent: dict[int, str] = {}
        self._asked_at: float | None = None
        self._looked_at: dict[int, float] = {}

    def stepped(self, rank: int) -> None:
        """Take note that a member made a step, or is to make one."""
        self._late.watch(rank)
        self._left.watch(rank)

    def absent(self, rank: int, doing: str) -> None:
        """Take note that a rank takes part in no step; empty: it does again."""
        if doing and rank in self._looked_after:
            self._absent[rank] = doing
        else:
            self._absent.pop(rank, None)

    def check(self, at: float) -> Ask | Stuck | None:
        """Return what is to be done about those that make no step."""
        late = self._late.due(at)
        left = [rank for rank in self._left.due(at) if rank not in late] if self._absent else []
        left = [rank for rank in left if self._absent.keys() - {rank}]
        if not late and not left:
            if self._asked_at is not None:  # they moved on while they were being looked at
                self._forget()
            return None
        if self._asked_at is None:
            self._asked_at = at
            return Ask()
        asked = [self._members[rank] for rank in self._awaited]
        if at < self._asked_at + _ANSWER_SECONDS and any(m.stack is None for m in asked):
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
        return Stuck(rank, words + self._whom(rank), self._members[rank].stack or "")

    def _forsaken(self, at: float, left: Sequence[int]) -> Stuck | None:
        """Return a rank that waits in a step for one that takes part in none."""
        for rank in left:
            self._looked_at[rank] = at
        stuck = [rank for rank in left if self._members[rank].in_step]
        if not stuck:
            return None
        words = f"made no step for {self._patience:g} seconds"
        return Stuck(stuck[0], words + self._whom(stuck[0]), self._members[stuck[0]].stack or "")

    def _whom(self, rank: int) -> str:
        others = [f"{self._tasks[peer]} {what}" for peer, what in self._absent.items()]
        if rank in self._absent or not others or not self._members[rank].together:
            return ""
        more = f" and {len(others) - 1} more like it" if len(others) > 1 else ""
        return f": its steps take all ranks, and {others[0]}{more}"
