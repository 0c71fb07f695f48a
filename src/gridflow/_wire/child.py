"""The messages between an agent and its training process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._wire.commands import AMONG_RANKS, Arrived, Counts, EndEvaluation, Inspect
from gridflow._wire.failures import FailureKind
from gridflow._wire.messages import Family, Message
from gridflow._wire.reports import RELAYED

if TYPE_CHECKING:
    from gridflow._spec.job import JobSpec


@dataclass(frozen=True)
class Setup(Message):
    """Everything that the training process needs before it calls the function.

    `addresses` (dict of role to list of str): Addresses of the tasks.
    `tf_config`: For TensorFlow's own resolver.
    `job_spec`: `spec`, pickled.
    `runs_function`, `serves`: See `gridflow._spec.job.Part`.
    `gpu_memory`: The memory granted, in MiB.
    `function`, `modules`, `spool`, `results`, `tensorboard`: Paths.
    `resume`: Path of the checkpoint to resume from.
    `view`: If this process replaces another: the group in which it takes that one's place.
    """

    kind: ClassVar[str] = "setup"
    job: str
    task: str
    generation: int
    addresses: dict[str, list[str]]
    tf_config: str | None
    job_spec: bytes
    runs_function: bool
    serves: bool
    gpus: list[str]
    gpu_memory: int | None
    function: str
    modules: str
    spool: str
    results: str
    tensorboard: str
    resume: str | None
    view: int = 0

    @cached_property
    def spec(self) -> JobSpec:
        """The job's options, as created in the driver."""
        spec: JobSpec = pickle.loads(self.job_spec)  # noqa: S301 (this process's own agent sent it)
        return spec


@dataclass(frozen=True)
class NewCheckpoint(Message):
    """There is a new checkpoint for the evaluator."""

    kind: ClassVar[str] = "new_checkpoint"
    path: str
    place: Place


@dataclass(frozen=True)
class Leave(Message):
    """The result has arrived: exit."""

    kind: ClassVar[str] = "leave"


@dataclass(frozen=True)
class Hello(Message):
    """The process is running."""

    kind: ClassVar[str] = "hello"
    pid: int


@dataclass(frozen=True)
class RowsAwaited(Message):
    """It waits for rows or has made its first step: writing rows needn't give way any longer.

    `early`: Whether it trains on rows before all have arrived, and needs to know how many there
        are. All ranks then do.
    """

    kind: ClassVar[str] = "rows_awaited"
    early: bool = False


@dataclass(frozen=True)
class MadeCheckpoint(Message):
    """A checkpoint file is complete.

    `label`: Label of the last section that it covers.
    `is_awaited`: Whether someone waits to hear that the driver has it.
    """

    kind: ClassVar[str] = "made_checkpoint"
    path: str
    place: Place
    label: str | None = None
    is_awaited: bool = False


@dataclass(frozen=True)
class Returned(Message):
    """The function returned. A folder holds the files to send.

    `result`: What `gridflow._keras.results.pack` made of the value.
    `imported`: Packages that it has imported, so that later processes can do so earlier.
    """

    kind: ClassVar[str] = "returned"
    result: dict[str, Any]
    folder: str
    imported: list[str]


@dataclass(frozen=True)
class Raised(Message):
    """The function raised.

    `exit_code`: Exit code of a ``sys.exit()``.
    `consequence`: Whether it looks like a consequence of another task's failure.
    `failure_kind`: The kind, if it is known already.
    """

    kind: ClassVar[str] = "raised"
    summary: str
    traceback: str
    exit_code: int | None
    hint: str
    consequence: bool
    failure_kind: FailureKind | None


@dataclass(frozen=True)
class StreamNews(Message):
    """The state of the pushed rows, by stream.

    `first`, `segments` (dict of stream to int): The first segment on disk, and the number after the
        last one.
    `skip` (dict of stream to int): Rows of the first segment that count as taken.
    `before` (dict of stream to int): Rows that earlier generations have taken.
    `begin` (dict of stream to int): The section that the generation begins with.
    `section`, `certain`, `counts`, `previous`, `repeats`: See
        `gridflow._wire.commands.StreamStanding`.
    `label`: Label of the last section that has ended; None if there are no sections.
    `ended`: Whether no stream will receive more rows.
    `address`: ``host:port`` of the agent's receiver; empty before a stream is opened.
    """

    kind: ClassVar[str] = "stream_news"
    first: dict[str, int]
    segments: dict[str, int]
    skip: dict[str, int]
    before: dict[str, int]
    begin: dict[str, int]
    section: dict[str, int]
    certain: dict[str, int]
    counts: dict[str, list[int]]
    previous: dict[str, list[int]]
    repeats: dict[str, bool]
    label: str | None
    ended: bool
    address: str


@dataclass(frozen=True)
class StreamOpened(Message):
    """The function reads a stream of pushed rows.

    `batch_size`: Rows that it needs at once.
    `together`: Whether all ranks make the same steps.
    `as_sent`: Whether rows are kept as they are sent, for a function that makes no tensors of them.
    """

    kind: ClassVar[str] = "stream_opened"
    name: str
    batch_size: int
    together: bool
    as_sent: bool = False


@dataclass(frozen=True)
class StreamTaken(Message):
    """Rows of a stream taken since the generation began: they aren't needed again.

    `are_last`: Whether the function takes no more of them; those of other ranks may.
    """

    kind: ClassVar[str] = "stream_taken"
    name: str
    rows: int
    are_last: bool = False


@dataclass(frozen=True)
class StreamMark(Message):
    """Rows of a stream since the generation began that a checkpoint covers."""

    kind: ClassVar[str] = "stream_mark"
    name: str
    place: Place
    rows: int
    section: int


@dataclass(frozen=True)
class StreamResults(Message):
    """The function's answers to rows: an Arrow file, which the reader deletes."""

    kind: ClassVar[str] = "stream_results"
    name: str
    segment: int
    path: str


TO_CHILD: Final[Family[Message]] = Family(
    "the agent",
    *(Setup, Arrived, Counts, NewCheckpoint, EndEvaluation, Inspect, Leave, StreamNews),
    *AMONG_RANKS,
)
FROM_CHILD: Final[Family[Message]] = Family(
    "the training process",
    *(Hello, RowsAwaited, MadeCheckpoint, Returned, Raised, *RELAYED),
    *(StreamOpened, StreamTaken, StreamMark, StreamResults),
)
