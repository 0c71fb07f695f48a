"""The coordinator's commands to an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._wire.messages import Family, Message


class Command(Message):
    """Something for the agent to do."""


@dataclass(frozen=True)
class Start(Command):
    """All agents have registered: start the training process.

    `addresses`: Address of each task, in order.
    `resume`: Name of the checkpoint to resume from.
    `place`: Place of that checkpoint.
    `view`: If this agent takes another's place: the group in which its process does.
    """

    kind: ClassVar[str] = "start"
    generation: int
    addresses: tuple[str, ...]
    resume: str | None
    place: Place | None = None
    view: int = 0


@dataclass(frozen=True)
class Counts(Command):
    """Every rank has its rows.

    `rows`, `borrowed`: Rows of each rank that is fed, in order.
    `specs`: Column types by dataset, for readers inside TensorFlow servers.
    `left_out`: dict of dataset to dict of column to reason.
    `nulls` (dict of dataset to dict of column to int): Rows dropped because of nulls.
    """

    kind: ClassVar[str] = "counts"
    rows: dict[str, list[int]]
    borrowed: dict[str, list[int]]
    specs: dict[str, Any]
    left_out: dict[str, dict[str, str]]
    nulls: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Arrived(Command):
    """How many rows can be read on every rank while more are to come.

    `certain`: Rows on each rank that is fed.
    `going_on`: Rows on each rank that will get more, if the other ranks have rows to repeat.
    """

    kind: ClassVar[str] = "arrived"
    certain: dict[str, int]
    going_on: dict[str, int]


@dataclass(frozen=True)
class StreamStanding(Command):
    """How many pushed rows all ranks have received.

    `section` (dict of stream to int): The first section that hasn't ended on all ranks.
    `certain` (dict of stream to int): Rows of it that every rank has received.
    `counts` (dict of stream to list of int): Rows of each rank in it, for streams that have ended
        with it.
    `previous` (dict of stream to list of int): Rows of each rank in the section before it.
    `repeats` (dict of stream to bool): Whether each rank had rows by the end of the last section,
        so that it can repeat some.
    """

    kind: ClassVar[str] = "stream_standing"
    generation: int
    section: dict[str, int]
    certain: dict[str, int]
    counts: dict[str, list[int]]
    previous: dict[str, list[int]]
    repeats: dict[str, bool]


@dataclass(frozen=True)
class EndRows(Command):
    """The rows so far form a section: train on all of it, then make a checkpoint.

    `sections`: Number of sections, including this one.
    `label`: What the checkpoint covers, as the feeder calls it. Empty before the first section,
        when checkpoints are to be made only at the ends of sections; None: there are none.
    `are_all`: Whether no more rows may be taken.
    """

    kind: ClassVar[str] = "end_rows"
    sections: int
    label: str | None
    are_all: bool


@dataclass(frozen=True)
class Committed(Command):
    """The driver has a checkpoint of the generation, and may resume from it."""

    kind: ClassVar[str] = "committed"
    generation: int
    place: Place


@dataclass(frozen=True)
class Replace(Command):
    """Restart the training process of a rank while the others go on, or form a group again.

    `rank`: -1: none is restarted, but one that was away takes part again.
    `view`: If the rank belongs to a group: the number of the group that forms, which its other
        ranks hear, too.
    `members`: The ranks of that group, if some are away.
    """

    kind: ClassVar[str] = "replace"
    generation: int
    rank: int
    view: int = 0
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class AskToSave(Command):
    """The group will be somewhere else: make a checkpoint at the end of a step.

    The rank that hears it tells the others with its gradients.

    `stays`: Whether no rank makes another step after it.
    `at_end`: Whether to make it at the end of the epoch, if another one follows.
    """

    kind: ClassVar[str] = "ask_to_save"
    generation: int
    stays: bool
    at_end: bool = False


@dataclass(frozen=True)
class Met(Command):
    """All ranks have reached a barrier, or never will.

    `number`: The number of the barrier on this rank.
    `values`: In base64: the value of each rank in order, or only that of the first.
    `problem`: Why they never will; empty if they have.
    """

    kind: ClassVar[str] = "met"
    generation: int
    number: int
    values: list[str]
    problem: str


#: Commands about what the ranks of a generation do together.
AMONG_RANKS: Final = (AskToSave, Met, Replace)


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
    """No more checkpoints will come."""

    kind: ClassVar[str] = "end_evaluation"


@dataclass(frozen=True)
class Inspect(Command):
    """Report where the training process is, a `Stack`, or profile steps.

    `profile`: The first and the last of these; empty for a stack.
    """

    kind: ClassVar[str] = "inspect"
    generation: int
    profile: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lend(Command):
    """Provide some rows for a rank that has none."""

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
    *(Start, Counts, Arrived, StreamStanding, EndRows, Committed),
    *(Clear, Fetch, EndEvaluation, Inspect, Lend, Borrow, Close),
    *AMONG_RANKS,
)
