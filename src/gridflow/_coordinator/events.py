"""What can happen to a job (events), and what to do about it (instructions). All data.

The messages from and to agents are the wire's own (`gridflow._wire`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gridflow._wire import reports

if TYPE_CHECKING:
    from gridflow._wire.commands import Command
    from gridflow._wire.headers import Registration, Sender
    from gridflow.errors import GridflowError


@dataclass(frozen=True)
class Event:
    """Something that happened, at time ``at`` of the driver's clock (`gridflow._wire.clock`)."""

    at: float


@dataclass(frozen=True)
class Tick(Event):
    """Time passed: check the deadlines."""


@dataclass(frozen=True)
class DriverStoodStill(Event):
    """The driver stood still for a while, which the events' clock doesn't count."""

    seconds: float


@dataclass(frozen=True)
class Registered(Event):
    """An agent registered."""

    agent: Registration


#: Reports of a task in one generation that affect the state of the job.
OfTask: TypeAlias = (
    reports.Ready
    | reports.StepsDue
    | reports.Failed
    | reports.Succeeded
    | reports.Joined
    | reports.Cleared
    | reports.Stack
    | reports.Saved
)
#: The same for an agent's reports about itself.
OfAgent: TypeAlias = reports.ExecutorFrozen | reports.Gone


@dataclass(frozen=True)
class Heard(Event):
    """An agent sent a sign of life, perhaps with a report."""

    sender: Sender
    report: OfTask | OfAgent | None = None


@dataclass(frozen=True)
class AgentLost(Event):
    """An agent is gone: its process or its executor ended."""

    launch: int
    rank: int
    detail: str


@dataclass(frozen=True)
class AgentLeaving(Event):
    """An agent will be gone soon: its executor or host is being preempted."""

    launch: int
    rank: int
    detail: str


@dataclass(frozen=True)
class SlotsCame(Event):
    """The cluster has another number of slots for the launch's tasks, its own included."""

    launch: int
    slots: int


@dataclass(frozen=True)
class TaskWaits(Event):
    """A task waits for others outside of any step, in some function; empty: no longer."""

    rank: int
    generation: int
    function: str


@dataclass(frozen=True)
class WantsToJoin(Event):
    """The process of a rank without which its group goes on is ready to take part again."""

    launch: int
    rank: int
    generation: int


@dataclass(frozen=True)
class RowsUnfit(Event):
    """The rows of a dataset can't be fed, seen over all ranks."""

    reason: str


@dataclass(frozen=True)
class NotReplaced(Event):
    """No new agent can take the place of one that is lost, while the others of the group go on."""

    launch: int
    rank: int
    reason: str


@dataclass(frozen=True)
class DriverFailed(Event):
    """The driver itself failed."""

    error: GridflowError


@dataclass(frozen=True)
class LaunchEnded(Event):
    """A launch's Spark job or processes have ended.

    ``outlived``: Spark gave up the job, and the tasks that it is ending may still run.
    """

    launch: int
    error: GridflowError | None = None
    outlived: bool = False


@dataclass(frozen=True)
class Interrupted(Event):
    """The user wants the job to end."""


class Instruction:
    """Something to do."""


@dataclass(frozen=True)
class BeginLaunch(Instruction):
    """Start the agents."""

    launch: int


@dataclass(frozen=True)
class CancelLaunch(Instruction):
    """End the agents from outside: cancel the Spark job, kill the processes."""

    launch: int


@dataclass(frozen=True)
class ReplaceExecutor(Instruction):
    """Let the target replace the executor of a task."""

    launch: int
    rank: int


@dataclass(frozen=True)
class ReplaceAgent(Instruction):
    """Let the launch start another agent in the place of one that is lost."""

    launch: int
    rank: int


@dataclass(frozen=True)
class StartRank(Instruction):
    """Let a new agent take its place in a generation, and its process that in a group (a view)."""

    generation: int
    rank: int
    addresses: tuple[str, ...]
    view: int


@dataclass(frozen=True)
class StartGeneration(Instruction):
    """Send every agent the cluster spec of a generation, and the checkpoint to resume from."""

    generation: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Send(Instruction):
    """Send a command to the agents of some ranks; None: all."""

    command: Command
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Say(Instruction):
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Finish(Instruction):
    """The job is over. Without an error, it succeeded."""

    error: GridflowError | None
    interrupted: bool = False
