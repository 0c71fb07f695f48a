"""An agent's reports to the coordinator.

For those that come from a training process (`gridflow._wire.child`), the agent adds its generation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._spec.printable import printable
from gridflow._wire.failures import TaskFailure
from gridflow._wire.messages import Family, OfTraining, Report

# Reports of training processes about what the ranks do together; the coordinator decides.
#
# Its answers are in `gridflow._wire.commands`.


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


@dataclass(frozen=True)
class Log(Report):
    """The task's output."""

    kind: ClassVar[str] = "log"
    lines: list[str]


@dataclass(frozen=True)
class Spooled(Report):
    """All rows of the rank have arrived.

    `counts`: The fields of `gridflow._feed.ledger.DatasetCounts`.
    `specs`: Types and shapes of columns, encoded by `gridflow._feed.store.records.encode_specs`.
    `left_out`: dict of dataset to dict of column to reason.
    `inflow`: How they came: in ``inflow`` seconds, of which ``upstream`` passed in waiting for
        those who compute them, and ``inflow_bytes``. Empty for rows of another rank.
    `digests`: What tells a dataset's rows from others, if agents are replaced.
    """

    kind: ClassVar[str] = "spooled"
    counts: dict[str, dict[str, Any]]
    specs: dict[str, Any]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)
    inflow: dict[str, float] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arriving(Report):
    """Rows of the rank can be read, and more will come.

    The first rows of each dataset are always reported, later ones only if the function trains on
    them before all have arrived.

    `rows`: Rows so far, for every dataset.
    """

    kind: ClassVar[str] = "arriving"
    rows: dict[str, int]


@dataclass(frozen=True)
class Receiving(Report):
    """Rows of a stream can be pushed to the agent.

    `address`: ``host:port`` of its receiver.
    `together`: Whether the ranks make the same steps on these rows.
    """

    kind: ClassVar[str] = "receiving"
    stream: str
    address: str
    together: bool


@dataclass(frozen=True)
class Streamed(Report):
    """Rows were pushed to the agent.

    `rows` (dict of stream to int): Since the generation began.
    `first` (dict of stream to int): The section that the generation began with.
    `ends` (dict of stream to list of [section, rows]): The last sections that ended, and how many
        rows had arrived by then.
    `ended`: Whether no more rows will come.
    `counts` (dict of stream to dict): The fields of `gridflow._feed.ledger.DatasetCounts`, over all
        generations.
    `specs` (dict of stream to dict): Types and shapes of columns, if they are new.
    """

    kind: ClassVar[str] = "streamed"
    generation: int
    rows: dict[str, int]
    first: dict[str, int]
    ends: dict[str, list[list[int]]]
    ended: bool
    counts: dict[str, dict[str, Any]]
    specs: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed(Report):
    """The task failed."""

    kind: ClassVar[str] = "failed"
    failure: TaskFailure

    @property
    def generation(self) -> int:
        return self.failure.generation


@dataclass(frozen=True)
class Succeeded(Report):
    """The function returned, and its result was sent.

    `result`: What `gridflow._keras.results.pack` made of the value.
    """

    kind: ClassVar[str] = "succeeded"
    generation: int
    result: dict[str, Any]


@dataclass(frozen=True)
class Cleared(Report):
    """All processes of the generation have ended."""

    kind: ClassVar[str] = "cleared"
    generation: int


@dataclass(frozen=True)
class ExecutorFrozen(Report):
    """The agent's executor is frozen."""

    kind: ClassVar[str] = "executor_frozen"
    detail: str


@dataclass(frozen=True)
class Gone(Report):
    """The agent's last report."""

    kind: ClassVar[str] = "gone"


@dataclass(frozen=True)
class BoardServed(Report):
    """TensorBoard is running."""

    kind: ClassVar[str] = "board"
    url: str


@dataclass(frozen=True)
class Ready(OfTraining):
    """The process is up and its strategy exists."""

    kind: ClassVar[str] = "ready"


@dataclass(frozen=True)
class Joined(OfTraining):
    """The function has joined its TensorFlow server, and never returns."""

    kind: ClassVar[str] = "joined"


@dataclass(frozen=True)
class FeedingStopped(OfTraining):
    """The function wants no more rows."""

    kind: ClassVar[str] = "feeding_stopped"


@dataclass(frozen=True)
class SectionTrained(OfTraining):
    """The function has trained on all rows of a section.

    `is_saved`: Whether a checkpoint covers it.
    """

    kind: ClassVar[str] = "section_trained"
    section: int
    is_saved: bool


@dataclass(frozen=True)
class Progress(OfTraining):
    """The progress of training.

    `epoch`, `step`: The epoch, and how many of its steps are done.
    `phase`: ``train``, ``test``, ``predict`` or ``idle``.
    `rows`: Rows since the last report.
    `fit`: Which call of ``fit``, from 0.
    `spent`: Seconds of the fits so far, by what they were spent on; see `gridflow._keras.due`.
    """

    kind: ClassVar[str] = "progress"
    epoch: int
    step: int
    steps_per_epoch: int | None
    phase: str
    rows: int
    logs: dict[str, float]
    fit: int = 0
    spent: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepsDue(OfTraining):
    """A step was made, the first one is due, or no more are due.

    `due`: Whether another step is due.
    `together`: Whether it needs all training ranks.
    """

    kind: ClassVar[str] = "steps_due"
    due: bool
    together: bool


@dataclass(frozen=True)
class EpochEnded(OfTraining):
    """An epoch's losses and metrics."""

    kind: ClassVar[str] = "epoch_ended"
    epoch: int
    logs: dict[str, float]
    fit: int
    restored: bool


@dataclass(frozen=True)
class EpochFed(OfTraining):
    """What was fed in an epoch: the fields of `gridflow._feed.ledger.EpochRecord`."""

    kind: ClassVar[str] = "epoch_fed"
    record: dict[str, Any]


@dataclass(frozen=True)
class Pulled(OfTraining):
    """The function reads files itself.

    `counts`: The fields of `gridflow._feed.ledger.DatasetCounts`.
    """

    kind: ClassVar[str] = "pulled"
    dataset: str
    rank: int
    counts: dict[str, Any]


@dataclass(frozen=True)
class DataServed(OfTraining):
    """What was read through the data service so far.

    `number`: Which of the process's datasets.
    `waited`, `elapsed`: Seconds in which the process waited for an element; from the first wait to
        the last.
    `elements`: Elements by the data worker that made them; ``unknown`` of a service that isn't
        gridflow's.
    """

    kind: ClassVar[str] = "data_served"
    number: int
    waited: float
    elapsed: float
    elements: dict[str, int]


@dataclass(frozen=True)
class Evaluated(OfTraining):
    """The evaluator's metrics of a checkpoint."""

    kind: ClassVar[str] = "evaluated"
    place: Place
    logs: dict[str, float]


@dataclass(frozen=True)
class Saved(OfTraining):
    """The driver has the checkpoint that it asked for, or the chief has none to send."""

    kind: ClassVar[str] = "saved"


@dataclass(frozen=True)
class NotFinite(OfTraining):
    """No checkpoint was made, because of a variable that is NaN or infinite."""

    kind: ClassVar[str] = "not_finite"
    place: Place
    variable: str


@dataclass(frozen=True)
class Stack(OfTraining):
    """The process's stack.

    `waiting`: Whether it seems to wait for a peer.
    `in_step`: Whether it seems to be in a step, which needs all ranks.
    `idle`: Seconds since its last step; None: no step is due.
    `threads`: The stacks of its other threads, by their names.
    """

    kind: ClassVar[str] = "stack"
    stack: str
    waiting: bool
    in_step: bool = False
    idle: float | None = None
    threads: dict[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """Return it as text: the main thread, then the others."""
        parts = {"main thread": self.stack, **self.threads}
        return printable("\n".join(f"{name}:\n{stack}" for name, stack in parts.items()))


RELAYED: Final = (
    *(Ready, Joined, FeedingStopped, SectionTrained),
    *(
        Progress,
        StepsDue,
        EpochEnded,
        EpochFed,
        Pulled,
        DataServed,
        Evaluated,
        Saved,
        NotFinite,
        Stack,
    ),
    *AMONG_RANKS,
)
REPORTS: Final[Family[Report]] = Family(
    "an agent",
    *(Log, Arriving, Spooled, Receiving, Streamed),
    *(Failed, Succeeded, Cleared, ExecutorFrozen, Gone, BoardServed, *RELAYED),
)
