"""What can happen to a job (events) and what is to be done about it (commands). All data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow.errors import GridflowError
    from gridflow.wire.failures import TaskFailure


@dataclass(frozen=True)
class Event:
    """Something that happened, ``at`` seconds on the driver's clock (`gridflow.wire.clock`)."""

    at: float


@dataclass(frozen=True)
class Tick(Event):
    """Time passed; deadlines are looked at."""


@dataclass(frozen=True)
class DriverStoodStill(Event):
    """The driver did nothing for a while; the clock of the events doesn't count that time."""

    seconds: float


@dataclass(frozen=True)
class AgentRegistered(Event):
    """An agent came up, and where its task will listen."""

    launch: int
    rank: int
    agent: str
    host: str
    address: str
    #: Versions of what matters: ``python``, ``tensorflow``, ``keras``; empty text when missing.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentAlive(Event):
    """An agent was heard of."""

    rank: int
    agent: str


@dataclass(frozen=True)
class AgentLost(Event):
    """An agent is known to be gone: its process ended, or its executor did."""

    launch: int
    rank: int
    detail: str


@dataclass(frozen=True)
class ExecutorFrozen(AgentLost):
    """An agent has told that its executor stands still, and so does what it has to do there."""


@dataclass(frozen=True)
class AgentLeaving(Event):
    """An agent is going to be gone: its executor or host will be taken away."""

    launch: int
    rank: int
    detail: str


@dataclass(frozen=True)
class SlotsCame(Event):
    """The cluster has given the launch more room than it had."""

    launch: int


@dataclass(frozen=True)
class TaskReady(Event):
    """The training process is up and its strategy exists."""

    rank: int
    generation: int


@dataclass(frozen=True)
class TaskStepped(Event):
    """A sign of progress.

    ``armed`` says whether further steps are to be expected, ``together`` whether they take all
    ranks that train.
    """

    rank: int
    generation: int
    armed: bool
    together: bool = False


@dataclass(frozen=True)
class TaskWaits(Event):
    """A task waits for others outside of any step, in some function; empty: not any more."""

    rank: int
    generation: int
    function: str


@dataclass(frozen=True)
class TaskFailed(Event):
    """The training process failed, or its rows could not be fed."""

    rank: int
    failure: TaskFailure


@dataclass(frozen=True)
class TaskSucceeded(Event):
    """The function returned, and what it returned was handed over."""

    rank: int
    generation: int


@dataclass(frozen=True)
class TaskJoined(Event):
    """The function has joined its TensorFlow server: it serves others, and never returns."""

    rank: int
    generation: int


@dataclass(frozen=True)
class TaskCleared(Event):
    """The training process of a generation is gone, with all that it started."""

    rank: int
    generation: int


@dataclass(frozen=True)
class TaskCanSave(Event):
    """At the end of which step a task can make a checkpoint; None: it makes none at present."""

    rank: int
    generation: int
    step: int | None


@dataclass(frozen=True)
class TaskSaved(Event):
    """The checkpoint that was asked for has arrived."""

    rank: int
    generation: int


@dataclass(frozen=True)
class StackReported(Event):
    """Where a training process stands; see `gridflow.wire.reports.Stack`."""

    rank: int
    generation: int
    stack: str
    waiting: bool
    in_step: bool = False
    idle: float | None = None


@dataclass(frozen=True)
class RowsUnfit(Event):
    """The rows of a dataset, all ranks' together, can't be fed."""

    reason: str


@dataclass(frozen=True)
class DriverFailed(Event):
    """The driver itself could not do its part."""

    error: GridflowError


@dataclass(frozen=True)
class AgentGone(Event):
    """An agent says its last word: no process of its task is left."""

    rank: int
    agent: str


@dataclass(frozen=True)
class LaunchEnded(Event):
    """What kept a launch alive has ended: its Spark job, or its processes.

    ``outlived``: Spark gave the job up, and the tasks that it ends now may still be there.
    """

    launch: int
    error: GridflowError | None = None
    outlived: bool = False


@dataclass(frozen=True)
class Interrupted(Event):
    """The user wants the job to end."""


class Command:
    """Something to be done."""


@dataclass(frozen=True)
class Launch(Command):
    """Bring agents to life."""

    launch: int


@dataclass(frozen=True)
class CancelLaunch(Command):
    """End the agents from outside: cancel the Spark job, kill the processes."""

    launch: int


@dataclass(frozen=True)
class ReplaceExecutor(Command):
    """Let the target end the executor of a task, and start another one."""

    launch: int
    rank: int


@dataclass(frozen=True)
class StartGeneration(Command):
    """Give every agent the cluster spec of a generation."""

    generation: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class ClearGeneration(Command):
    """Kill the training processes of a generation; with ``restart`` the agents prepare the next."""

    generation: int
    restart: bool


@dataclass(frozen=True)
class ReplaceTask(Command):
    """Start the process of one task again, in the same generation and at the same address."""

    rank: int
    generation: int


@dataclass(frozen=True)
class AskToSave(Command):
    """Let tasks stop at the end of a step and say which it is."""

    ranks: tuple[int, ...]
    generation: int


@dataclass(frozen=True)
class SaveAfter(Command):
    """Let tasks make a checkpoint at the end of a step; None: let them go on without.

    With ``stays`` they make no step after it.
    """

    ranks: tuple[int, ...]
    generation: int
    step: int | None
    stays: bool


@dataclass(frozen=True)
class EndEvaluation(Command):
    """Tell the evaluators that no further checkpoint will come."""


@dataclass(frozen=True)
class Say(Command):
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Inspect(Command):
    """Ask every training process where it stands."""

    generation: int


@dataclass(frozen=True)
class CloseAgents(Command):
    """Let all agents clean up and end."""


@dataclass(frozen=True)
class Finish(Command):
    """The job is over; without an error it succeeded."""

    error: GridflowError | None
    interrupted: bool = False
