"""Who speaks, and which file comes or is asked for: what stands before all that agents send.

A peer with the job's certificate may send anything. So each header is made one of these before
anybody looks at it: then a rank is a number, and only what is called a name is a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from gridflow._spec.place import Count, Place
from gridflow._wire.messages import Family, Message
from gridflow.errors import WireError

#: The sender of all of them, for errors.
AN_AGENT: Final = "an agent"
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


@dataclass(frozen=True)
class Sender:
    """The agent that speaks, as it registered."""

    rank: Count
    agent: str
    launch: Count


@dataclass(frozen=True)
class Registration(Sender):
    """An agent that came up.

    Attributes
    ----------
    host : str
    address : str
        ``host:port`` where its task will listen.
    environment : dict of str to str
        Versions of what matters.
    executor : str
        What Spark calls the executor, if there is one.
    """

    host: str
    address: str
    environment: dict[str, str]
    executor: str = ""


@dataclass(frozen=True)
class Exchange(Sender):
    """Reports for commands.

    Attributes
    ----------
    reports : list of dict
        Each a `gridflow._wire.reports.Report`, with its number in ``seq``.
    done : int
        The last command that was heard.
    """

    reports: list[dict[str, Any]]
    done: Count

    @property
    def numbers(self) -> list[int]:
        """That of each report."""
        try:
            return msgspec.convert([each.get("seq") for each in self.reports], list[Count])
        except msgspec.ValidationError as error:
            raise WireError(f"{AN_AGENT} sent reports without numbers: {error}") from error


@dataclass(frozen=True)
class Upload(Message, Sender):
    """A file that an agent sends."""


@dataclass(frozen=True)
class ResultFile(Upload):
    """A file of what the function returned."""

    kind: ClassVar[str] = "result"
    name: str


@dataclass(frozen=True)
class EventFile(Upload):
    """What is new in a file for TensorBoard.

    Attributes
    ----------
    name : str
        It may have folders.
    offset : int
        So many bytes of it were sent before.
    """

    kind: ClassVar[str] = "tensorboard"
    name: str
    offset: Count = 0


@dataclass(frozen=True)
class CheckpointFile(Upload):
    """A checkpoint, and the label of the last section that it covers."""

    kind: ClassVar[str] = "checkpoint"
    generation: Count
    place: Place
    label: str | None = None


@dataclass(frozen=True)
class LoanFile(Upload):
    """Rows of a dataset for ranks that have none."""

    kind: ClassVar[str] = "loan"
    name: str


UPLOADS: Final[Family[Upload]] = Family(AN_AGENT, ResultFile, EventFile, CheckpointFile, LoanFile)


@dataclass(frozen=True)
class Function(Message):
    """The training function."""

    kind: ClassVar[str] = "function"


@dataclass(frozen=True)
class Modules(Message):
    """The modules that travel with it."""

    kind: ClassVar[str] = "modules"


@dataclass(frozen=True)
class CheckpointDownload(Message):
    """A checkpoint, by its name."""

    kind: ClassVar[str] = "checkpoint"
    name: str


@dataclass(frozen=True)
class Loan(Message):
    """Rows of a dataset that another rank has lent."""

    kind: ClassVar[str] = "loan"
    name: str


DOWNLOADS: Final[Family[Message]] = Family(AN_AGENT, Function, Modules, CheckpointDownload, Loan)


@dataclass(frozen=True)
class RowsHeader:
    """Rows that a feeder brings to an agent.

    Attributes
    ----------
    stream : str
    feed : str
        Which call of ``feed`` they are of.
    partition, attempt : int
        Which part of it, and which try to send that.
    timeout : float
        Seconds within which they are to be answered, if they are.
    """

    stream: str
    feed: str
    partition: Count
    attempt: Count
    timeout: _Seconds = 0.0


@dataclass(frozen=True)
class RowsInFile:
    """Where rows lie, see `gridflow._feed.store.segment.Located`; `first` is their place."""

    first: Count
    path: str
    node: tuple[Count, Count]
    number: Count
    start: Count
    rows: Count
