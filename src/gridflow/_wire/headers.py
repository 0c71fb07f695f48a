"""Headers of what agents send: the sender, and the file that it sends or asks for.

A peer with the job's certificate may send anything. So each header is parsed into one of these
classes, which checks the types, before anything else reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec

from gridflow._spec.place import Count, Place
from gridflow._wire.messages import Family, Message
from gridflow.errors import WireError

#: The sender of all headers, for error messages.
AN_AGENT: Final = "an agent"
#: How often an agent measures the load of its host.
LOAD_SECONDS: Final = 10.0
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e7)]


@dataclass(frozen=True)
class Sender:
    """The agent that sends, as it registered."""

    rank: Count
    agent: str
    launch: Count


@dataclass(frozen=True)
class Registration(Sender):
    """The registration of an agent.

    `address`: ``host:port`` where its task will listen.
    `environment`: Versions of the packages that matter.
    `executor`: Spark's id of the executor, if there is one.
    """

    host: str
    address: str
    environment: dict[str, str]
    executor: str = ""


@dataclass(frozen=True)
class Exchange(Sender):
    """Reports for commands.

    `reports`: Each a `gridflow._wire.reports.Report`, with its number in ``seq``.
    `done`: Number of the last command received.
    `load`: That of the agent's host, now and then (`gridflow._agent.host_load`).
    """

    reports: list[dict[str, Any]]
    done: Count
    load: dict[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> list[int]:
        try:
            return msgspec.convert([each.get("seq") for each in self.reports], list[Count])
        except msgspec.ValidationError as error:
            raise WireError(f"{AN_AGENT} sent reports without numbers: {error}") from error


@dataclass(frozen=True)
class Upload(Message, Sender):
    """A file that an agent sends."""


@dataclass(frozen=True)
class ResultFile(Upload):
    """A file of the function's result."""

    kind: ClassVar[str] = "result"
    name: str


@dataclass(frozen=True)
class EventFile(Upload):
    """New content of a TensorBoard event file.

    `name`: A relative path.
    `offset`: Number of bytes already sent.
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
class StoredCheckpoint(CheckpointFile):
    """A checkpoint that an agent has written itself to the place that it was offered.

    `at`: The place, as the offer named it.
    """

    at: str = field(kw_only=True)
    size: Count = field(kw_only=True)


@dataclass(frozen=True)
class LoanFile(Upload):
    """Rows of a dataset for ranks that have none."""

    kind: ClassVar[str] = "loan"
    name: str


UPLOADS: Final[Family[Upload]] = Family(AN_AGENT, ResultFile, EventFile, CheckpointFile, LoanFile)


@dataclass(frozen=True)
class Download:
    """A file that an agent asks for.

    `kind`: The training function, the modules that are shipped with it, a checkpoint, or rows that
        another rank has lent.
    `name`: That of the checkpoint or the dataset.
    """

    kind: Literal["function", "modules", "checkpoint", "loan"]
    name: str = ""

    def __post_init__(self) -> None:
        if bool(self.name) != (self.kind in {"checkpoint", "loan"}):
            raise ValueError(f"a {self.kind} of name {self.name!r}")


@dataclass(frozen=True)
class RowsHeader:
    """Rows that a feeder sends to an agent.

    `feed`: The call of ``feed`` that they belong to.
    `partition`, `attempt`: The partition, and the attempt to send it.
    `timeout`: Seconds that the function may take without reading a row; 0: any time.
    """

    stream: str
    feed: str
    partition: Count
    attempt: Count
    timeout: _Seconds = 0.0


@dataclass(frozen=True)
class RowsInFile:
    """The file that holds rows, see `gridflow._feed.store.segment.Located`.

    `first`: The number of the first row in its partition.
    """

    first: Count
    path: str
    node: tuple[Count, Count]
    number: Count
    start: Count
    rows: Count
