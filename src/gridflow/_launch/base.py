"""What a launcher is: the only part that differs from target to target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from gridflow._feed.push.sender import Destination
    from gridflow._spec.gpus import GpuNeed
    from gridflow._wire.payload import AgentPayload
    from gridflow.errors import GridflowError


@dataclass(frozen=True)
class Placement:
    """What a launcher found out before anything was launched.

    Attributes
    ----------
    target : str
        For example ``local`` or ``spark (local-cluster[2,1,2048])``.
    host : str
        The address that the coordinator's server binds, unless the user says another.
    advertise : str
        The name or address by which the agents reach it.
    slots : int or None
        How many tasks the target can run at once; None when it can't be known.
    details : dict
        Further facts that `plan` shows.
    left_out : mapping of dataset to mapping of column to reason
        Columns that can't be fed.
    columns : tuple of str
        All columns of all datasets.
    default_folder : str
        Where paths begin that aren't complete, with the scheme of the target's default file system;
        empty: the driver's working directory.
    full : str
        Why no rows could be pushed into the job; empty if they can be.
    """

    target: str
    host: str
    advertise: str
    slots: int | None
    details: dict[str, str] = field(default_factory=dict)
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    default_folder: str = ""
    full: str = ""


class LaunchListener(Protocol):
    """Who is told how a launch goes on, from whichever thread."""

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Take note that an agent is gone."""
        ...

    def agent_leaving(self, launch: int, rank: int, detail: str) -> None:
        """Take note that an agent will be gone, as its executor or host is taken away."""
        ...

    def slots_came(self, launch: int) -> None:
        """Take note that the target has given the launch more room."""
        ...

    def has_agents(self, launch: int) -> bool:
        """Return whether any agent of a launch has come up."""
        ...

    def executors(self, launch: int) -> Mapping[int, str]:
        """Return the names of the executors that its agents run on, by rank, where known."""
        ...

    def launch_ended(
        self, launch: int, error: GridflowError | None, *, outlived: bool = False
    ) -> None:
        """All agents of the launch have ended, or are being ended (``outlived``)."""
        ...


class PassesOn:
    """What a listener that stands between a launch and another listener doesn't change.

    Parameters
    ----------
    listener : LaunchListener
    """

    def __init__(self, listener: LaunchListener) -> None:
        self._listener = listener

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on."""
        self._listener.agent_lost(launch, rank, detail)

    def agent_leaving(self, launch: int, rank: int, detail: str) -> None:
        """Pass it on."""
        self._listener.agent_leaving(launch, rank, detail)

    def slots_came(self, launch: int) -> None:
        """Pass it on."""
        self._listener.slots_came(launch)

    def has_agents(self, launch: int) -> bool:
        """Ask the listener."""
        return self._listener.has_agents(launch)

    def executors(self, launch: int) -> Mapping[int, str]:
        """Ask the listener."""
        return self._listener.executors(launch)


class Launch(Protocol):
    """One launch: agents that were started together, until the last of them has ended."""

    def obstacle(self) -> str:
        """Return what keeps its agents from coming up; empty if nothing is known."""
        ...

    def cancel(self) -> None:
        """End its agents from outside; returns at once, the listener hears of it."""
        ...

    def close(self) -> None:
        """End what still runs; wait for its threads and processes."""
        ...


class Launcher(Protocol):
    """Brings agents to life.

    The one that a user makes holds settings; each job gets one of its own from `for_job`, so that
    jobs that run at the same time have nothing in common.
    """

    def for_job(self) -> Launcher:
        """Return a launcher with the same settings that has launched nothing."""
        ...

    def place(
        self,
        num_tasks: int,
        data: Mapping[str, Any],
        start_timeout: float,
        *,
        fed: Sequence[int] | None = None,
        gpus: Sequence[GpuNeed] = (),
    ) -> Placement:
        """Check that tasks and data fit the target.

        Rows go to the tasks at the places ``fed``, by default to all; ``gpus`` is what each task
        needs. It may wait for slots that are still coming up.

        Raises
        ------
        NotEnoughSlots, NotEnoughGpus, SchemaError, InvalidArgument
            With the numbers, or the columns.
        """
        ...

    def launch(
        self,
        payload: AgentPayload,
        data: Mapping[str, Any],
        listener: LaunchListener,
    ) -> Launch:
        """Start an agent for every task of the payload; returns at once."""
        ...

    def feed(
        self,
        destination: Destination,
        rows: Any,
        columns: Sequence[str] | None,
        has_ended: Callable[[float], bool],
    ) -> int:
        """Push rows into a running job; return how many of them its agents have taken.

        Fewer than there are where the job wants no more.

        Parameters
        ----------
        has_ended : callable
            Waits so many seconds, and returns whether the job takes no more rows.

        Raises
        ------
        InterruptedError
            The job wanted no more, and whoever makes the rows didn't end by itself.
        InvalidArgument, SchemaError, NotEnoughSlots
            At the call: what can't be pushed.
        DataError
            What kept the rows from being computed or taken.
        """
        ...

    def feed_stream(
        self,
        rows: Any,
        feed_batch: Callable[[Any, str], None],
        covered: str | None,
        options: Mapping[str, Any],
        has_ended: Callable[[float], bool],
    ) -> None:
        """Push a streaming DataFrame, micro-batch by micro-batch, until it or the job ends.

        Parameters
        ----------
        feed_batch : callable
            Takes a micro-batch and its label; returns when the model's checkpoint covers it.
        covered : str or None
            The label that the model's checkpoint had at the beginning.
        options : mapping
            ``checkpointLocation``, and as ``trigger`` what ``DataStreamWriter.trigger`` takes.
        has_ended : callable
            Waits so many seconds, and returns whether the job takes no more rows.
        """
        ...

    def infer(self, destination: Destination, rows: Any, schema: str, timeout: float) -> DataFrame:
        """Return a DataFrame with columns of answers beside those of another, not yet computed.

        Raises
        ------
        InvalidArgument, NotEnoughSlots
            At the call.
        """
        ...

    def replace_executor(self, executor: str) -> None:
        """Let the target end an executor that stands still, and start another; returns at once."""
        ...

    def make_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a daemon thread in which a job may run as it would in the caller's."""
        ...

    def close(self) -> None:
        """Delete what the job needed here, after its launches were closed."""
        ...
