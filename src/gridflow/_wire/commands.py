"""What the coordinator tells an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._wire.messages import Family, Message


class Command(Message):
    """Something for the agent to do."""


@dataclass(frozen=True)
class Start(Command):
    """All agents are there: let the training process begin.

    Attributes
    ----------
    generation : int
    addresses : tuple of str
        Where each task listens, by its place.
    resume : str or None
        Name of the checkpoint to go on from.
    place : Place or None
        That of the checkpoint.
    """

    kind: ClassVar[str] = "start"
    generation: int
    addresses: tuple[str, ...]
    resume: str | None
    place: Place | None = None


@dataclass(frozen=True)
class Counts(Command):
    """Every rank has its rows.

    Attributes
    ----------
    rows, borrowed : dict of dataset to list of int
        Of each rank that is fed, in order.
    specs : dict
        Types of columns by dataset, for readers inside TensorFlow's servers.
    left_out : dict of dataset to dict of column to reason
    nulls : dict of dataset to dict of column to int
        Rows that were dropped for nulls.
    """

    kind: ClassVar[str] = "counts"
    rows: dict[str, list[int]]
    borrowed: dict[str, list[int]]
    specs: dict[str, Any]
    left_out: dict[str, dict[str, str]]
    nulls: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Announce(Command):
    """Go on saying how many rows of the rank can be read; somebody trains on them already."""

    kind: ClassVar[str] = "announce"


@dataclass(frozen=True)
class Arrived(Command):
    """So many rows can be read on every rank, and more are to come.

    Attributes
    ----------
    certain : dict of dataset to int
        On each rank that is fed.
    going_on : dict of dataset to int
        On each of those of which more rows are to come, where the others have any to repeat.
    """

    kind: ClassVar[str] = "arrived"
    certain: dict[str, int]
    going_on: dict[str, int]


@dataclass(frozen=True)
class StreamStanding(Command):
    """What all ranks have got of the rows that are pushed.

    Attributes
    ----------
    generation : int
    section : dict of stream to int
        The first section that hasn't ended on all ranks.
    certain : dict of stream to int
        Rows that every rank has got of it.
    counts : dict of stream to list of int
        Rows of each rank in it, of streams that have ended with it.
    previous : dict of stream to list of int
        Rows of each rank in the section before it.
    repeats : dict of stream to bool
        Whether each rank has had rows by the end of the section that has ended last, so that it
        can repeat some.
    """

    kind: ClassVar[str] = "stream_standing"
    generation: int
    section: dict[str, int]
    certain: dict[str, int]
    counts: dict[str, list[int]]
    previous: dict[str, list[int]]
    repeats: dict[str, bool]


@dataclass(frozen=True)
class EndSection(Command):
    """What has come by now is a section: train on all of it, and make a checkpoint.

    Attributes
    ----------
    sections : int
        How many there are with it.
    label : str
        What the checkpoint then covers, in the words of whoever feeds; empty before the first
        one: checkpoints are to be made at the ends of sections only.
    """

    kind: ClassVar[str] = "end_section"
    sections: int
    label: str


@dataclass(frozen=True)
class EndStreams(Command):
    """Take no more rows."""

    kind: ClassVar[str] = "end_streams"


@dataclass(frozen=True)
class Committed(Command):
    """The driver has a checkpoint of the generation, and may let one go on from it."""

    kind: ClassVar[str] = "committed"
    generation: int
    place: Place


@dataclass(frozen=True)
class Replace(Command):
    """Start the training process again, while the others go on."""

    kind: ClassVar[str] = "replace"
    generation: int


@dataclass(frozen=True)
class AskToSave(Command):
    """A task of the group will be taken away: stop at the end of a step, and say which it is."""

    kind: ClassVar[str] = "ask_to_save"
    generation: int


@dataclass(frozen=True)
class SaveAfter(Command):
    """Make a checkpoint at the end of a step, the same on all ranks.

    Attributes
    ----------
    generation : int
    step : int or None
        Counted over all fits; None: go on, and make none.
    stays : bool
        Whether no step is made after it.
    """

    kind: ClassVar[str] = "save_after"
    generation: int
    step: int | None
    stays: bool


@dataclass(frozen=True)
class Met(Command):
    """The ranks have met, or will never do.

    Attributes
    ----------
    generation : int
    number : int
        Which meeting of the rank's.
    values : list of str
        In base64: that of each rank in order, or the first one's alone.
    problem : str
        Why it can't be held; empty: it was.
    """

    kind: ClassVar[str] = "met"
    generation: int
    number: int
    values: list[str]
    problem: str


@dataclass(frozen=True)
class ChiefWrites(Command):
    """Where Keras's callbacks write on the chief, in a fit that takes all ranks."""

    kind: ClassVar[str] = "chief_writes"
    generation: int
    fit: int
    paths: list[str]


@dataclass(frozen=True)
class AskToStop(Command):
    """Some rank wants a fit to end: say at which point this one can, and wait there."""

    kind: ClassVar[str] = "ask_to_stop"
    generation: int
    fit: int


@dataclass(frozen=True)
class StopAt(Command):
    """Let a fit end at the first point that isn't before this one."""

    kind: ClassVar[str] = "stop_at"
    generation: int
    fit: int
    point: int


#: What ranks that do something together are told, in a generation.
AMONG_RANKS: Final = (AskToSave, SaveAfter, Met, ChiefWrites, AskToStop, StopAt)


@dataclass(frozen=True)
class Clear(Command):
    """End the generation's training process; another one may follow."""

    kind: ClassVar[str] = "clear"
    generation: int
    restart: bool


@dataclass(frozen=True)
class Fetch(Command):
    """There is a new checkpoint for the evaluator."""

    kind: ClassVar[str] = "fetch"
    name: str
    place: Place


@dataclass(frozen=True)
class EndEvaluation(Command):
    """No further checkpoint will come."""

    kind: ClassVar[str] = "end_evaluation"


@dataclass(frozen=True)
class Inspect(Command):
    """Ask the training process where it stands."""

    kind: ClassVar[str] = "inspect"
    generation: int


@dataclass(frozen=True)
class Lend(Command):
    """Give some rows for a rank that has none."""

    kind: ClassVar[str] = "lend"
    dataset: str


@dataclass(frozen=True)
class Borrow(Command):
    """Fetch the rows that another rank has lent."""

    kind: ClassVar[str] = "borrow"
    dataset: str


@dataclass(frozen=True)
class Close(Command):
    """The job is over."""

    kind: ClassVar[str] = "close"


COMMANDS: Final[Family[Command]] = Family(
    "the coordinator",
    *(Start, Counts, Announce, Arrived, StreamStanding, EndSection, EndStreams, Committed),
    *(Replace, Clear, Fetch, EndEvaluation, Inspect, Lend, Borrow, Close),
    *AMONG_RANKS,
)
