"""Where ranks wait for each other and exchange values. Pure.

Each rank numbers its meetings. Meetings with the same number are one, which completes once all
ranks have joined. Values are passed on unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._wire import commands
from gridflow._wire.values import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._wire.ranks import Meet

#: The maximum length of a value in base64.
_LONGEST: Final = MOST_BYTES * 4 // 3 + 4
_BROADCAST: Final = "broadcast"
#: How many tasks an error names.
_SHOWN: Final = 3


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
    """

    def __init__(self, generation: int, members: Sequence[int], tasks: Sequence[str]) -> None:
        self._generation, self._members, self._tasks = generation, tuple(members), tasks
        self._open: dict[int, _Meeting] = {}
        #: Why a rank won't join any more meetings.
        self._left: dict[int, str] = {}

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
        meeting.problem = meeting.problem or f"{self._names(self._missing(meeting))} did not join"
        return self._settle(number)

    def left(self, rank: int, why: str, generation: int) -> list[Answer]:
        """Note that a rank won't join any more meetings."""
        if generation != self._generation or rank not in self._members:
            return []
        self._left[rank] = why
        return [answer for number in list(self._open) for answer in self._settle(number)]

    def _settle(self, number: int) -> list[Answer]:
        """Answer the ranks in a meeting, if its outcome is clear."""
        meeting = self._open[number]
        missing = self._missing(meeting)
        gone = [rank for rank in missing if rank in self._left]
        if gone and not meeting.problem:
            meeting.problem = f"{self._tasks[gone[0]]} {self._left[gone[0]]}"
        if missing and not meeting.problem:
            return []
        said = [] if meeting.problem else [meeting.values[rank] for rank in self._members]
        told = commands.Met(
            self._generation,
            number,
            said[:1] if meeting.operation == _BROADCAST else said,
            meeting.problem,
        )
        new = [rank for rank in meeting.values if rank not in meeting.answered]
        meeting.answered.update(new)
        if len(meeting.answered) == len(self._members):
            del self._open[number]
        return [Answer(rank, told) for rank in new]

    def _missing(self, meeting: _Meeting) -> list[int]:
        return [rank for rank in self._members if rank not in meeting.values]

    def _names(self, ranks: Sequence[int]) -> str:
        shown, more = ", ".join(self._tasks[rank] for rank in ranks[:_SHOWN]), len(ranks) - _SHOWN
        return f"{shown} and {more} more" if more > 0 else shown
