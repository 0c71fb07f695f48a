"""Where ranks wait for each other and exchange values. Pure.

Each rank numbers its meetings. Meetings with the same number are one, which completes once all
ranks have joined. Values are passed on unchanged.

Number 0 is the introduction, in which the ranks of a group find each other. Where ranks are
replaced while the others go on, each group (a view) has one, in which only its members are. Who
introduces itself without being one is a guest: the next view may have it. Until a view with it has
formed, the others don't wait for it, and hear None from it. A new process makes all other meetings
of its rank again, which the others have left behind: it hears what was said there.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._wire import commands
from gridflow._wire.reports import INTRODUCTION
from gridflow._wire.values import MOST_BYTES, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._wire.reports import Meet

#: The maximum length of a value in base64.
_LONGEST: Final = MOST_BYTES * 4 // 3 + 4
_BROADCAST: Final = "broadcast"
_NOTHING: Final = base64.b64encode(pack(None)).decode()
#: How many tasks an error names.
_SHOWN: Final = 3
#: How much of what was said is kept, in characters, for processes that replace others.
_MOST_KEPT: Final = 256 << 20


@dataclass(frozen=True)
class Answer:
    """The answer to a rank."""

    rank: int
    command: commands.Met


@dataclass
class _Meeting:
    operation: str
    values: dict[int, str] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    problem: str = ""


class Meetings:
    """The meetings of one generation.

    `members`: The ranks that take part.
    `tasks`: Their names.
    `keeps`: Whether to keep what was said, for processes that replace others.
    """

    def __init__(
        self,
        generation: int,
        members: Sequence[int],
        tasks: Sequence[str],
        *,
        keeps: bool = False,
    ) -> None:
        self._generation, self._members, self._tasks = generation, tuple(members), tasks
        self._keeps, self._view, self._in_view = keeps, 0, self._members
        #: Who is waited for, which is more than a view that has yet to form.
        self._present = self._members
        #: Ranks that want to be in the next view.
        self.guests: set[int] = set()
        self._past: dict[int, commands.Met] = {}
        self._kept = 0
        self._open: dict[int, _Meeting] = {}
        #: Why a rank won't join any more meetings.
        self._left: dict[int, str] = {}

    @property
    def chief(self) -> int:
        """The first rank that takes part."""
        return next(iter(self._present), 0)

    def waiting(self, rank: int) -> str:
        """Return the call in which a rank waits, as code; empty if it doesn't wait."""
        found = (
            meeting.operation
            for meeting in self._open.values()
            if rank in meeting.values and rank not in meeting.answered
        )
        return next((f"ctx.{operation}()" for operation in found), "")

    def came(self, rank: int, report: Meet) -> list[Answer]:
        """Note that a rank has joined a meeting."""
        if report.generation != self._generation or rank not in self._members:
            return []
        if report.number == INTRODUCTION:
            if report.view != self._view:
                return [Answer(rank, self._changes)]
            if rank not in self._in_view:
                self.guests.add(rank)
                return []
        if report.number in self._past:
            return [Answer(rank, self._past[report.number])]
        meeting = self._open.setdefault(report.number, _Meeting(report.operation))
        if len(report.value) > _LONGEST:
            meeting.problem = f"{self._tasks[rank]} sent a value larger than {MOST_BYTES:,} bytes"
        elif report.operation != meeting.operation:
            there = next(iter(meeting.values), rank)
            meeting.problem = (
                f"{self._tasks[there]} called ctx.{meeting.operation}() and {self._tasks[rank]} "
                f"ctx.{report.operation}(): all ranks must make the same calls in the same order"
            )
        meeting.values[rank] = report.value
        return self._settle(report.number)

    def given_up(self, rank: int, number: int, generation: int) -> list[Answer]:
        """Note that a rank has stopped waiting in a meeting."""
        meeting = self._open.get(number)
        if generation != self._generation or meeting is None or rank in meeting.answered:
            return []
        meeting.problem = meeting.problem or f"{self._names(self._missing(number))} did not join"
        return self._settle(number)

    def left(self, rank: int, why: str, generation: int) -> list[Answer]:
        """Note that a rank won't join any more meetings."""
        if generation != self._generation or rank not in self._members:
            return []
        self._left[rank] = why
        return [answer for number in list(self._open) for answer in self._settle(number)]

    def replaced(self, told: commands.Replace) -> list[Answer]:
        """Note that a rank gets a new process, that a group forms, or both."""
        rank = told.rank
        self._left.pop(rank, None)
        self.guests.discard(rank)
        for number, meeting in self._open.items():  # it will come again
            if number != INTRODUCTION:
                meeting.values.pop(rank, None)
                meeting.answered.discard(rank)
        if told.view == self._view:
            return []
        self._view, self._in_view = told.view, told.members or self._members
        self._present = tuple(each for each in self._present if each in self._in_view)
        was = self._open.pop(INTRODUCTION, None)
        waiting = set() if was is None else was.values.keys() - was.answered
        waiting |= self.guests
        self.guests = set()
        found = [Answer(each, self._changes) for each in sorted(waiting - {rank})]
        return found + [answer for number in list(self._open) for answer in self._settle(number)]

    @property
    def _changes(self) -> commands.Met:
        return commands.Met(self._generation, INTRODUCTION, [], "the group has changed meanwhile")

    def _keep(self, told: commands.Met) -> None:
        if not self._keeps or told.number == INTRODUCTION:  # each group has one of its own
            return
        self._past[told.number] = told
        self._kept += sum(map(len, told.values))
        while self._kept > _MOST_KEPT:
            oldest = self._past.pop(next(iter(self._past)))
            self._kept -= sum(map(len, oldest.values))

    def _settle(self, number: int) -> list[Answer]:
        """Answer the ranks in a meeting, if its outcome is clear."""
        meeting = self._open[number]
        missing = self._missing(number)
        gone = [rank for rank in missing if rank in self._left]
        if gone and not meeting.problem:
            meeting.problem = f"{self._tasks[gone[0]]} {self._left[gone[0]]}"
        if missing and not meeting.problem:
            return []
        members = self._members_of(number)
        said = [] if meeting.problem else self._said(number)
        told = commands.Met(
            self._generation,
            number,
            said,
            meeting.problem,
        )
        new = [rank for rank in meeting.values if rank not in meeting.answered]
        meeting.answered.update(new)
        if meeting.answered.issuperset(members):
            del self._open[number]
            self._keep(told)
            if number == INTRODUCTION and not meeting.problem:
                self._present = self._in_view
        return [Answer(rank, told) for rank in new]

    def _members_of(self, number: int) -> tuple[int, ...]:
        """Return who takes part in a meeting.

        A broadcast has a word from whoever was the chief as it called it. If that one is away
        since, without a word, its new process is waited for.
        """
        if number == INTRODUCTION:
            return self._in_view
        meeting = self._open[number]
        if meeting.operation != _BROADCAST or any(meeting.values.values()):
            return self._present
        return tuple(dict.fromkeys([*self._members[:1], *self._present]))

    def _said(self, number: int) -> list[str]:
        values = self._open[number].values
        if number == INTRODUCTION:
            return [values[rank] for rank in self._in_view]
        if self._open[number].operation == _BROADCAST:
            return [next((values[rank] for rank in sorted(values) if values[rank]), _NOTHING)]
        return [values.get(rank, _NOTHING) for rank in self._members]

    def _missing(self, number: int) -> list[int]:
        there = self._open[number].values
        return [rank for rank in self._members_of(number) if rank not in there]

    def _names(self, ranks: Sequence[int]) -> str:
        shown, more = ", ".join(self._tasks[rank] for rank in ranks[:_SHOWN]), len(ranks) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown
