"""What an agent and its training process tell one another."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._wire.commands import AMONG_RANKS, Arrived, Counts, EndEvaluation
from gridflow._wire.failures import FailureKind
from gridflow._wire.messages import Family, Message
from gridflow._wire.reports import RELAYED

if TYPE_CHECKING:
    from gridflow._spec.job import JobSpec


@dataclass(frozen=True)
class Setup(Message):
    """Everything that the training process has to know before its function is called.

    Attributes
    ----------
    job, task : str
    generation : int
    addresses : dict of role to list of str
        Who listens where.
    tf_config : str or None
        For TensorFlow's own resolver.
    job_spec : bytes
        What `spec` is read from, pickled.
    runs_function, serves : bool
        See `gridflow._spec.tasks.Part`.
    gpus : list of str
    gpu_memory : int or None
        What was granted, in MiB.
    function, modules, spool, results, tensorboard : str
        Paths.
    resume : str or None
        Path of the checkpoint to go on from.
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

    @cached_property
    def spec(self) -> JobSpec:
        """The job's options, as its driver made them: whatever is added to them arrives here."""
        spec: JobSpec = pickle.loads(self.job_spec)  # noqa: S301 (this process's own agent sent it)
        return spec


@dataclass(frozen=True)
class NewCheckpoint(Message):
    """A checkpoint lies there for the evaluator."""

    kind: ClassVar[str] = "new_checkpoint"
    path: str
    place: Place


@dataclass(frozen=True)
class LookAround(Message):
    """Say where you stand."""

    kind: ClassVar[str] = "look_around"


@dataclass(frozen=True)
class Leave(Message):
    """What you returned has arrived: end."""

    kind: ClassVar[str] = "leave"


@dataclass(frozen=True)
class Hello(Message):
    """The process runs."""

    kind: ClassVar[str] = "hello"
    pid: int


@dataclass(frozen=True)
class Imported(Message):
    """What it has imported, for processes to come."""

    kind: ClassVar[str] = "imported"
    packages: list[str]


@dataclass(frozen=True)
class RowsAwaited(Message):
    """It waits for rows, or has made its first step: they needn't give way to it any longer."""

    kind: ClassVar[str] = "rows_awaited"


@dataclass(frozen=True)
class MadeCheckpoint(Message):
    """A checkpoint file is complete; the label is that of the last section that it covers.

    Whether it ``is_awaited``: somebody is to hear that the driver has it.
    """

    kind: ClassVar[str] = "made_checkpoint"
    path: str
    place: Place
    label: str | None = None
    is_awaited: bool = False


@dataclass(frozen=True)
class Returned(Message):
    """The function returned; what is to be sent lies in a folder.

    Attributes
    ----------
    result : dict
        What `gridflow._keras.results.pack` made of the value.
    folder : str
    """

    kind: ClassVar[str] = "returned"
    result: dict[str, Any]
    folder: str


@dataclass(frozen=True)
class Raised(Message):
    """The function raised.

    Attributes
    ----------
    summary, traceback, hint : str
    exit_code : int or None
        Of a ``sys.exit()``.
    consequence : bool
        Whether it looks like the echo of another task's failure.
    failure_kind : FailureKind or None
        Where it is known already.
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
    """What is known of the rows that are pushed, by stream.

    Attributes
    ----------
    first, segments : dict of stream to int
        The first segment that is there, and the number after the last.
    skip : dict of stream to int
        Rows of the first segment that count as taken.
    before : dict of stream to int
        Rows that the generations before have had.
    begin : dict of stream to int
        The section that the generation begins with.
    section, certain, counts, previous, repeats
        See `gridflow._wire.commands.StreamStanding`.
    label : str or None
        Of the last section that has ended; None where there are no sections.
    ended : bool
        Whether no more rows are to come, of any stream.
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


@dataclass(frozen=True)
class StreamOpened(Message):
    """The function takes rows that are pushed.

    Attributes
    ----------
    name : str
    batch_size : int
        Rows that it needs at once.
    together : bool
        Whether all ranks make equal steps.
    """

    kind: ClassVar[str] = "stream_opened"
    name: str
    batch_size: int
    together: bool


@dataclass(frozen=True)
class StreamTaken(Message):
    """So many rows of a stream were taken since the generation began: they aren't needed again."""

    kind: ClassVar[str] = "stream_taken"
    name: str
    rows: int


@dataclass(frozen=True)
class StreamMark(Message):
    """A checkpoint is made at a place, with so many rows of a stream since the generation began."""

    kind: ClassVar[str] = "stream_mark"
    name: str
    place: Place
    rows: int
    section: int


@dataclass(frozen=True)
class StreamResults(Message):
    """What the function answered to rows; an Arrow file that is to be deleted once it is read."""

    kind: ClassVar[str] = "stream_results"
    name: str
    segment: int
    path: str


TO_CHILD: Final[Family[Message]] = Family(
    "the agent",
    *(Setup, Arrived, Counts, NewCheckpoint, EndEvaluation, LookAround, Leave, StreamNews),
    *AMONG_RANKS,
)
FROM_CHILD: Final[Family[Message]] = Family(
    "the training process",
    *(Hello, Imported, RowsAwaited, MadeCheckpoint, Returned, Raised, *RELAYED),
    *(StreamOpened, StreamTaken, StreamMark, StreamResults),
)
