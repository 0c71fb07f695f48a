"""What a training process says where ranks do something together, for the coordinator to agree on.

What they are told is among `gridflow._wire.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from gridflow._wire.messages import OfTraining


@dataclass(frozen=True)
class FitBegins(OfTraining):
    """A fit begins that takes all ranks: the chief's, or that of a rank that asks for its paths.

    Attributes
    ----------
    fit : int
        Its number among those, from 0.
    writes : list of str
        Where Keras's callbacks write on this rank.
    """

    kind: ClassVar[str] = "fit_begins"
    fit: int
    writes: list[str]


@dataclass(frozen=True)
class FitStarts(OfTraining):
    """Its first epoch starts: callbacks have restored what they restore.

    Attributes
    ----------
    fit, epoch : int
    updates : int
        That the optimizer has made; -1: there is none.
    """

    kind: ClassVar[str] = "fit_starts"
    fit: int
    epoch: int
    updates: int


@dataclass(frozen=True)
class CanStop(OfTraining):
    """At which point a fit that takes all ranks can end on this one, who waits there.

    Attributes
    ----------
    fit : int
    point : int
        See `gridflow._keras.stopping`; -1: the rank isn't in that fit.
    wants : bool
        Whether a callback wants it; else the rank was asked.
    """

    kind: ClassVar[str] = "can_stop"
    fit: int
    point: int
    wants: bool = False


@dataclass(frozen=True)
class Meet(OfTraining):
    """The rank waits for all others, and says something to them.

    Attributes
    ----------
    number : int
        Which meeting of the rank's, from 1.
    operation : str
        ``barrier``, ``broadcast`` or ``all_gather``.
    value : str
        Of `gridflow._wire.values`, in base64.
    """

    kind: ClassVar[str] = "meet"
    number: int
    operation: str
    value: str


@dataclass(frozen=True)
class MeetingGivenUp(OfTraining):
    """The rank waits no longer, unless it is told that all have come."""

    kind: ClassVar[str] = "meeting_given_up"
    number: int


AMONG_RANKS: Final = (FitBegins, FitStarts, CanStop, Meet, MeetingGivenUp)
