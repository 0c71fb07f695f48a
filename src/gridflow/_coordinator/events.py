"""What can happen to a job (events) and what is to be done about it (instructions). All data.

What an agent says, and what it is told, are the wire's own messages (`gridflow._wire`).
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
    """Something that happened, ``at`` seconds on the driver's clock (`gridflow._wire.clock`)."""

    at: float


@dataclass(frozen=True)
class Tick(Event):
    """Time passed; deadlines are looked at."""


@dataclass(frozen=True)
class DriverStoodStill(Event):
    """The driver did nothing for a while; the clock of the events doesn't count that time."""

    seconds: float


@dataclass(frozen=True)
class Registered(Event):
    """An agent came up."""

    agent: Registration


#: Reports of a task in one generation that the state of the job depends on.
OfTask: TypeAlias = (
    reports.Ready
    | reports.StepsDue
    | reports.Failed
    | reports.Succeeded
    | reports.Joined
    | reports.Cleared
    | reports.Stack
    | reports.CanSave
    | reports.Saved
)
#: The same of what an agent says of itself.
OfAgent: TypeAlias = reports.ExecutorFrozen | reports.Gone


@dataclass(frozen=True)
class Heard(Event):
    """An agent was heard of; with a report, if it had one."""

    sender: Sender
    report: OfTask | OfAgent | None = None


@dataclass(frozen=True)
class AgentLost(Event):
    """An agent is known to be gone: its process ended, or its executor did."""

    launch: int
    rank: int
    detail: str


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
class TaskWaits(Event):
    """A task waits for others outside of any step, in some function; empty: not any more."""

    rank: int
    generation: int
    function: str


@dataclass(frozen=True)
class RowsUnfit(Event):
    """The rows of a dataset, all ranks' together, can't be fed."""

    reason: str


@dataclass(frozen=True)
class DriverFailed(Event):
    """The driver itself could not do its part."""

    error: GridflowError


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


class Instruction:
    """Something to be done."""


@dataclass(frozen=True)
class BeginLaunch(Instruction):
    """Bring agents to life."""

    launch: int


@dataclass(frozen=True)
class CancelLaunch(Instruction):
    """End the agents from outside: cancel the Spark job, kill the processes."""

    launch: int


@dataclass(frozen=True)
class ReplaceExecutor(Instruction):
    """Let the target end the executor of a task, and start another one."""

    launch: int
    rank: int


@dataclass(frozen=True)
class StartGeneration(Instruction):
    """Give every agent the cluster spec of a generation, and the checkpoint to go on from."""

    generation: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Send(Instruction):
    """Leave a command for the agents of some ranks; None: of all."""

    command: Command
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Say(Instruction):
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class Finish(Instruction):
    """The job is over; without an error it succeeded."""

    error: GridflowError | None
    interrupted: bool = False
