"""Reports of training processes about what the ranks do together; the coordinator decides.

Its answers are in `gridflow._wire.commands`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

from gridflow._wire.messages import OfTraining


@dataclass(frozen=True)
class FitBegins(OfTraining):
    """A fit of all ranks begins on the chief, or on a rank that asks for the chief's paths.

    Attributes
    ----------
    fit : int
        Its number among the fits of all ranks, from 0.
    writes : list of str
        Where Keras's callbacks write on this rank.
    """

    kind: ClassVar[str] = "fit_begins"
    fit: int
    writes: list[str]


@dataclass(frozen=True)
class FitStands(OfTraining):
    """Where a rank stands in a fit: as it starts, and when an epoch has ended.

    Attributes
    ----------
    fit, epoch : int
        How many epochs are done; callbacks have restored their state.
    starts : bool
        Whether the fit starts here.
    updates : int
        Updates that the optimizer has made; -1: there is no optimizer.
    rates : list of float
        The learning rates that callbacks can change.
    weights : list of [name, sum, norm]
        Of what is trained; empty where ranks train apart for a while.
    """

    kind: ClassVar[str] = "fit_stands"
    fit: int
    epoch: int
    starts: bool
    updates: int
    rates: list[float] = field(default_factory=list)
    weights: list[tuple[str, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class CanStop(OfTraining):
    """Where a fit of all ranks can end on this rank, which waits there.

    Attributes
    ----------
    fit : int
    point : int
        See `gridflow._keras.stopping`; -1: the rank isn't in that fit.
    wants : bool
        Whether a callback wants to stop; otherwise the rank was asked.
    """

    kind: ClassVar[str] = "can_stop"
    fit: int
    point: int
    wants: bool = False


@dataclass(frozen=True)
class Meet(OfTraining):
    """The rank waits for all others, and sends them a value.

    Attributes
    ----------
    number : int
        The number of the barrier on this rank, from 1.
    operation : str
        ``barrier``, ``broadcast`` or ``all_gather``.
    value : str
        Packed by `gridflow._wire.values`, in base64.
    """

    kind: ClassVar[str] = "meet"
    number: int
    operation: str
    value: str


@dataclass(frozen=True)
class MeetingGivenUp(OfTraining):
    """The rank stops waiting, unless it is told that all have arrived."""

    kind: ClassVar[str] = "meeting_given_up"
    number: int


AMONG_RANKS: Final = (FitBegins, FitStands, CanStop, Meet, MeetingGivenUp)
