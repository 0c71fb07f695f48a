"""What an agent tells the coordinator.

Of those that a training process begins with (`gridflow._wire.child`) the agent adds in which
generation it was.

Longer than other modules: one message after the other, each with its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gridflow._spec.place import Place
from gridflow._wire.failures import TaskFailure
from gridflow._wire.messages import Family, OfTraining, Report
from gridflow._wire.ranks import AMONG_RANKS


@dataclass(frozen=True)
class Log(Report):
    """What the task printed."""

    kind: ClassVar[str] = "log"
    lines: list[str]


@dataclass(frozen=True)
class Spooled(Report):
    """All rows of the rank have arrived.

    Attributes
    ----------
    counts : dict of dataset to dict
        The fields of `gridflow._feed.ledger.DatasetCounts`.
    specs : dict of dataset to dict
        Types and shapes of columns, as `gridflow._feed.store.records.encode_specs` has them.
    left_out : dict of dataset to dict of column to reason
    """

    kind: ClassVar[str] = "spooled"
    counts: dict[str, dict[str, Any]]
    specs: dict[str, Any]
    left_out: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Arriving(Report):
    """Rows of the rank can be read, and more are to come.

    The first ones of each dataset are reported in any case, further ones after an `Announce`.

    Attributes
    ----------
    rows : dict of dataset to int
        So far, of every dataset.
    """

    kind: ClassVar[str] = "arriving"
    rows: dict[str, int]


@dataclass(frozen=True)
class Receiving(Report):
    """Rows of a stream can be pushed to the agent.

    Attributes
    ----------
    stream : str
    address : str
        ``host:port`` of its receiver.
    together : bool
        Whether the ranks make equal steps on these rows.
    """

    kind: ClassVar[str] = "receiving"
    stream: str
    address: str
    together: bool


@dataclass(frozen=True)
class Streamed(Report):
    """Rows were pushed to the agent.

    Attributes
    ----------
    generation : int
    rows : dict of stream to int
        Since the generation began.
    first : dict of stream to int
        The section that the generation began with.
    ends : dict of stream to list of [section, rows]
        The last sections that have ended, and how many rows had come by then.
    ended : bool
        Whether no more rows will come.
    counts : dict of stream to dict
        The fields of `gridflow._feed.ledger.DatasetCounts`, over all generations.
    specs : dict of stream to dict
        Types and shapes of columns, where they are news.
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
        """That in which it failed."""
        return self.failure.generation


@dataclass(frozen=True)
class Succeeded(Report):
    """The function returned, and what it returned was sent.

    Attributes
    ----------
    generation : int
    result : dict
        What `gridflow._keras.results.pack` made of the value.
    """

    kind: ClassVar[str] = "succeeded"
    generation: int
    result: dict[str, Any]


@dataclass(frozen=True)
class Cleared(Report):
    """No process of the generation is left."""

    kind: ClassVar[str] = "cleared"
    generation: int


@dataclass(frozen=True)
class ExecutorFrozen(Report):
    """The executor that the agent lives with does nothing any more."""

    kind: ClassVar[str] = "executor_frozen"
    detail: str


@dataclass(frozen=True)
class Gone(Report):
    """The agent's last word."""

    kind: ClassVar[str] = "gone"


@dataclass(frozen=True)
class BoardServed(Report):
    """TensorBoard is served."""

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
class RowsWanted(OfTraining):
    """The function trains on rows before all have arrived, and has to know how many there are."""

    kind: ClassVar[str] = "rows_wanted"


@dataclass(frozen=True)
class FeedingStopped(OfTraining):
    """The function wants no more rows."""

    kind: ClassVar[str] = "feeding_stopped"


@dataclass(frozen=True)
class SectionTrained(OfTraining):
    """All rows of a section were trained on.

    Attributes
    ----------
    section : int
    is_saved : bool
        Whether a checkpoint was made of it.
    """

    kind: ClassVar[str] = "section_trained"
    section: int
    is_saved: bool


@dataclass(frozen=True)
class Progress(OfTraining):
    """How far the training has come.

    Attributes
    ----------
    epoch, step : int
        The epoch, and the steps of it that are done.
    steps_per_epoch : int or None
    phase : str
        ``train``, ``test``, ``predict`` or ``idle``.
    rows : int
        Rows since the last report.
    logs : dict of str to float
    fit : int
        Which call of ``fit``, from 0.
    """

    kind: ClassVar[str] = "progress"
    epoch: int
    step: int
    steps_per_epoch: int | None
    phase: str
    rows: int
    logs: dict[str, float]
    fit: int = 0


@dataclass(frozen=True)
class StepsDue(OfTraining):
    """A step was made, or the first one is due; or none is due any more.

    Attributes
    ----------
    due : bool
        Whether a step is to be expected.
    together : bool
        Whether it takes all ranks that train.
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
    """What an epoch was fed: the fields of `gridflow._feed.ledger.EpochRecord`."""

    kind: ClassVar[str] = "epoch_fed"
    record: dict[str, Any]


@dataclass(frozen=True)
class Pulled(OfTraining):
    """The function reads files itself.

    Attributes
    ----------
    dataset : str
    rank : int
    counts : dict
        The fields of `gridflow._feed.ledger.DatasetCounts`.
    """

    kind: ClassVar[str] = "pulled"
    dataset: str
    rank: int
    counts: dict[str, Any]


@dataclass(frozen=True)
class Evaluated(OfTraining):
    """What the evaluator found of a checkpoint."""

    kind: ClassVar[str] = "evaluated"
    place: Place
    logs: dict[str, float]


@dataclass(frozen=True)
class CanSave(OfTraining):
    """At the end of which step a checkpoint can be made, counted over all fits.

    None: no fit is in progress that makes checkpoints between two steps.
    """

    kind: ClassVar[str] = "can_save"
    step: int | None


@dataclass(frozen=True)
class Saved(OfTraining):
    """The checkpoint that was asked for is with the driver."""

    kind: ClassVar[str] = "saved"


@dataclass(frozen=True)
class Stack(OfTraining):
    """Where the process stands.

    Attributes
    ----------
    stack : str
    waiting : bool
        Whether it waits for a peer there, as far as can be told.
    in_step : bool
        Whether it is in what takes all ranks: a step, as far as can be told.
    idle : float or None
        Seconds since its last step; None: none is due.
    """

    kind: ClassVar[str] = "stack"
    stack: str
    waiting: bool
    in_step: bool = False
    idle: float | None = None


RELAYED: Final = (
    *(Ready, Joined, RowsWanted, FeedingStopped, SectionTrained),
    *(Progress, StepsDue, EpochEnded, EpochFed, Pulled, Evaluated, CanSave, Saved, Stack),
    *AMONG_RANKS,
)
REPORTS: Final[Family[Report]] = Family(
    "an agent",
    *(Log, Arriving, Spooled, Receiving, Streamed),
    *(Failed, Succeeded, Cleared, ExecutorFrozen, Gone, BoardServed, *RELAYED),
)
