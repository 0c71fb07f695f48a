"""The interface of launchers, and launchers by name: gridflow's own, and other packages'.

A package adds one with an entry point of the group ``gridflow.launchers``. Its class implements
`gridflow._launch.base.Launcher` and passes `gridflow.testing.launchers.LauncherSuite`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Final, Protocol

from gridflow._spec.brought import load
from gridflow.errors import InvalidArgument

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
    """What a launcher has found out before launching anything.

    `target`: For example ``local`` or ``spark (local-cluster[2,1,2048])``.
    `host`: The address that the coordinator's server binds by default.
    `advertise`: The name or address at which agents reach it.
    `slots`: How many tasks the target can run at once; None if unknown.
    `details`: Further facts that `plan` shows.
    `left_out` (mapping of dataset to mapping of column to reason): Columns that can't be fed.
    `columns`: All columns of all datasets.
    `default_folder`: The base of relative paths, with the scheme of the target's default file
        system; empty: the driver's working directory.
    `full`: Why rows can't be pushed into the job; empty if they can.
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
    """Is told how a launch goes on, from any thread."""

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        """Note that an agent is gone."""
        ...

    def executor_lost(self, launch: int, executor: str) -> None:
        """Note that the agents on an executor are gone, with it."""
        ...

    def agent_leaving(self, launch: int, rank: int, detail: str) -> None:
        """Note that an agent will be gone because its executor or host is preempted."""
        ...

    def slots_came(self, launch: int, slots: int) -> None:
        """Note how many tasks the target can run at once for the launch, its own included."""
        ...

    def could_use(self, launch: int) -> int:
        """Return how many more tasks a launch could have, if there were slots."""
        ...

    def has_agents(self, launch: int) -> bool:
        """Return whether any agent of a launch has registered."""
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
    """The calls that a listener between a launch and another listener passes on."""

    def __init__(self, listener: LaunchListener) -> None:
        self._listener = listener

    def agent_lost(self, launch: int, rank: int, detail: str) -> None:
        self._listener.agent_lost(launch, rank, detail)

    def executor_lost(self, launch: int, executor: str) -> None:
        self._listener.executor_lost(launch, executor)

    def agent_leaving(self, launch: int, rank: int, detail: str) -> None:
        self._listener.agent_leaving(launch, rank, detail)

    def slots_came(self, launch: int, slots: int) -> None:
        self._listener.slots_came(launch, slots)

    def could_use(self, launch: int) -> int:
        """Ask the listener."""
        return self._listener.could_use(launch)

    def has_agents(self, launch: int) -> bool:
        """Ask the listener."""
        return self._listener.has_agents(launch)

    def executors(self, launch: int) -> Mapping[int, str]:
        """Ask the listener."""
        return self._listener.executors(launch)


class Launch(Protocol):
    """One launch: agents that were started together, until the last of them has ended."""

    def obstacle(self) -> str:
        """Return what keeps its agents from starting; empty if unknown."""
        ...

    def replace(self, rank: int) -> bool:
        """Start an agent in the place of one that is gone; return whether one will come.

        It is called only if the launcher `replaces_agents`.
        """
        ...

    def cancel(self) -> None:
        """End its agents from outside; return at once. The listener is told."""
        ...

    def close(self) -> None:
        """End what still runs, and wait for its threads and processes."""
        ...


class Launcher(Protocol):
    """Starts agents.

    The user's object holds settings. Each job gets its own object from `for_job`, so that jobs that
    run at the same time share no state.

    `replaces_agents`: Whether the other agents of a launch go on when one is lost, and another one
        can come in its place.
    """

    @property
    def replaces_agents(self) -> bool:
        """See the class."""
        ...

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
        """Check that tasks and data match the target.

        The tasks ``fed``, by default all, get rows; ``gpus`` is what each task needs. It may wait
        for slots that are still starting.

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
        """Start an agent for every task of the payload; return at once."""
        ...

    def feed(
        self,
        destination: Destination,
        rows: Any,
        columns: Sequence[str] | None,
        has_ended: Callable[[float], bool],
    ) -> int:
        """Push rows into a running job; return how many of them its agents have taken.

        These are fewer than given if the job wants no more.

        Parameters
        ----------
        has_ended : callable
            Waits for some seconds, and returns whether the job takes no more rows.

        Raises
        ------
        InterruptedError
            The job wanted no more rows, but their source didn't end by itself.
        InvalidArgument, SchemaError, NotEnoughSlots
            At the call: something can't be pushed.
        DataError
            The rows can't be computed or taken.
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
            The label of the model's checkpoint at the start.
        options : mapping
            ``checkpointLocation``, and as ``trigger`` arguments of ``DataStreamWriter.trigger``.
        has_ended : callable
            Waits so many seconds, and returns whether the job takes no more rows.
        """
        ...

    def infer(self, destination: Destination, rows: Any, schema: str, timeout: float) -> DataFrame:
        """Return a DataFrame with columns of answers beside those of another; compute nothing yet.

        Raises
        ------
        InvalidArgument, NotEnoughSlots
            At the call.
        """
        ...

    def replace_executor(self, executor: str) -> None:
        """Let the target replace a frozen executor; return at once."""
        ...

    def make_thread(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Return a daemon thread in which a job runs as it would in the caller's thread."""
        ...

    def close(self) -> None:
        """Delete the job's files here, after its launches were closed."""
        ...


GROUP: Final = "gridflow.launchers"
_OURS: Final = (
    EntryPoint("local", "gridflow._launch.local:LocalLauncher", GROUP),
    EntryPoint("spark", "gridflow._launch.spark.launcher:SparkLauncher", GROUP),
)


def detached(launcher: Launcher) -> Launcher:
    """Return a launcher whose agents release their slots.

    Raises `InvalidArgument`: It has no slots to release.
    """
    make = getattr(launcher, "detached", None)
    if make is None:
        raise InvalidArgument(
            "LaunchOptions(detached=True) releases Spark's task slots for the tasks that feed the "
            f"job, but {type(launcher).__name__} has none. Leave it out: feeding works without it."
        )
    return make()  # type: ignore[no-any-return]


def replacing(launcher: Launcher) -> Launcher:
    """Return a launcher whose agents go on when one of them is lost, if it can be told so."""
    make = getattr(launcher, "replacing", None)
    return launcher if make is None else make()


def launcher_of(given: Any) -> Launcher | None:
    """Return the launcher that a user gave, as an object or by name; None if not given.

    Raises `InvalidArgument`: The name is unknown, or the object isn't a launcher.
    """
    if given is None:
        return None
    if isinstance(given, str):
        given = load("launcher", given, GROUP, _OURS)()
    missing = [name for name in ("for_job", "place", "launch") if not hasattr(given, name)]
    if missing or isinstance(given, type):
        raise InvalidArgument(
            "launcher= must be a name or an object such as LocalLauncher() or "
            "SparkLauncher(spark); got "
            f"{given!r}."
        )
    return given  # type: ignore[no-any-return]
