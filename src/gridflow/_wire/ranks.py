"""Reports of training processes about what the ranks do together; the coordinator decides.

Its answers are in `gridflow._wire.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gridflow._wire.messages import OfTraining


@dataclass(frozen=True)
class Meet(OfTraining):
    """The rank waits for all others, and sends them a value.

    `number`: The number of the barrier on this rank, from 1.
    `operation`: ``barrier``, ``broadcast`` or ``all_gather``.
    `value`: Packed by `gridflow._wire.values`, in base64.
    `view`: Of an introduction: the group that the rank wants to form.
    """

    kind: ClassVar[str] = "meet"
    number: int
    operation: str
    value: str
    view: int = 0


@dataclass(frozen=True)
class MeetingGivenUp(OfTraining):
    """The rank stops waiting, unless it is told that all have arrived."""

    kind: ClassVar[str] = "meeting_given_up"
    number: int


#: The number of the meeting in which ranks find each other, before all those of the function.
INTRODUCTION: Final = 0
AMONG_RANKS: Final = (Meet, MeetingGivenUp)
