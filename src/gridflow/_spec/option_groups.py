"""The groups of options of `gridflow.TensorflowDistributor`. They are checked when created.

Each is created once, in the driver, and sent whole to where it is read. So a new option is a field
here and a line where it is used. `TrainingOptions` and `HostOptions` hold what the distributor
takes as keywords. More groups are in `gridflow._spec.network`, `gridflow._spec.gpus` and
`gridflow._coordinator.policies`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.communication import CommunicationOptions, LocalSteps
from gridflow._spec.option_checks import (
    boolean,
    path,
    seconds,
    size_in_bytes,
    time_limit,
    whole_number,
)
from gridflow._spec.partitioners import FixedShardsPartitioner, MinSizePartitioner
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gridflow._spec.partitioners import Partitioner

#: Two minutes by default, as Spark waits for an executor.
_AGENTS_PATIENCE: Final = 12
#: Seconds: what makes a driver stand still takes longer than heartbeats.
_LEAST_PATIENCE: Final = 60.0
#: Bytes. Minutes of rows for most models, and little for a disk.
_SPOOL_LIMIT: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Time limits of a running job, in seconds. ``start_timeout`` limits its start.

    Time during which the driver itself stood still doesn't count.

    Parameters
    ----------
    heartbeat : float, default 10
        Silence after which an agent counts as lost, and the longest that its executor or a
        training process may be frozen. Agents wait longer for a silent driver: 12 times as long,
        and at least a minute.
    step : float or None, default 1800
        Time without a step in ``fit``, ``evaluate`` or ``predict``; None: no limit.
    shutdown : float, default 30
        Time for everything to end after success, failure or an interrupt, before it is killed.
    run : float or None, default None
        Time for the whole job, restarts included; None: no limit.

    Raises
    ------
    InvalidArgument
        A value isn't a number of seconds greater than 0.

    Examples
    --------
    >>> from gridflow import Deadlines, LocalLauncher, TensorflowDistributor
    >>> deadlines = Deadlines(step=600, run=24 * 3600)
    >>> distributor = TensorflowDistributor(2, deadlines=deadlines, launcher=LocalLauncher())
    """

    heartbeat: float = 10.0
    step: float | None = 1800.0
    shutdown: float = 30.0
    run: float | None = None

    def __post_init__(self) -> None:
        time_limit("Deadlines(heartbeat=)", self.heartbeat)
        time_limit("Deadlines(shutdown=)", self.shutdown)
        if self.step is not None:
            time_limit("Deadlines(step=)", self.step)
        if self.run is not None:
            time_limit("Deadlines(run=)", self.run)

    @property
    def driver(self) -> float:
        """Silence of a driver after which agents end, unless they learn earlier that it is gone.

        Agents are more patient than the driver: when a driver that was stopped, or suspended with
        its machine, goes on, its agents are still there.
        """
        return max(_LEAST_PATIENCE, _AGENTS_PATIENCE * self.heartbeat)


@dataclass(frozen=True, kw_only=True)
class Spool:
    """Where each host stores rows, and how many pushed rows may wait there.

    Parameters
    ----------
    dir : str, optional
        The absolute path of a folder. Default: the first of Spark's local folders, or the temporary
        folder.
    limit : str, optional
        How many bytes of pushed rows (`JobHandle.feed`) may wait on a host for each worker, such as
        ``"4GiB"``. Beyond it, feeders wait. Default: 1 GiB.

    Raises
    ------
    InvalidArgument
        The folder isn't an absolute path as a string, or the size has no unit.
    """

    dir: str | None = None
    limit: str | None = None

    def __post_init__(self) -> None:
        # A relative one would mean something else to each process of a host.
        if self.dir is not None and not (isinstance(self.dir, str) and self.dir.startswith("/")):
            raise InvalidArgument(
                f"Spool(dir=) must be the absolute path of a folder, as a string; got {self.dir!r}."
            )
        if self.limit is not None:
            size_in_bytes("Spool(limit=)", self.limit)

    @property
    def limit_in_bytes(self) -> int:
        """The limit as a number."""
        return _SPOOL_LIMIT if self.limit is None else size_in_bytes("Spool(limit=)", self.limit)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How tasks are launched, and what stays afterwards.

    Parameters
    ----------
    warm_seconds : float, default 300
        How long a host keeps a process that has imported TensorFlow and forks training processes,
        so that restarts and further runs start within a second or two. It uses about 300 MB. It
        ends earlier with its executor or driver, and at ``spark.stop()``. The default is typical
        of the time between two tries in a notebook. 0: start a new process each time.
    detached : bool, default False
        On Spark, without GPUs: release the slots of the job's tasks once they run, so that tasks
        which feed it (`JobHandle.feed`, `JobHandle.infer`) find free ones; see
        ``docs/streams.md``.
    keep_jobs : int or None, default 20
        How many jobs' folders to keep in the temporary folder. Older ones are deleted when a run
        starts, unless their driver still uses them. None: all. Folders in ``job_dir`` are never
        deleted. ``gridflow jobs`` lists and deletes them.

    Raises
    ------
    InvalidArgument
        A number is negative, or ``detached`` isn't a bool.
    """

    warm_seconds: float = 300.0
    detached: bool = False
    keep_jobs: int | None = 20

    def __post_init__(self) -> None:
        seconds("LaunchOptions(warm_seconds=)", self.warm_seconds)
        boolean("LaunchOptions(detached=)", self.detached)
        if self.keep_jobs is not None:
            whole_number("LaunchOptions(keep_jobs=)", self.keep_jobs, 0)


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Options for scripts and commands.

    Parameters
    ----------
    classic_flags : bool, default False
        Pass the flags ``--job_name``, ``--task_index``, ``--ps_hosts``, ``--worker_hosts`` (and
        ``--chief_hosts`` if there is a chief): to a script under ``strategy="server"`` before its
        own arguments, to a command under ``strategy="command"`` after them.
    patches : bool, default True
        Apply gridflow's patches of Keras's bugs to programs under ``strategy="command"``; see
        ``docs/distribution.md``. Functions always have them.

    Raises
    ------
    InvalidArgument
        A value isn't a bool.
    """

    classic_flags: bool = False
    patches: bool = True

    def __post_init__(self) -> None:
        boolean("Programs(classic_flags=)", self.classic_flags)
        boolean("Programs(patches=)", self.patches)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How a strategy exchanges gradients and spreads variables.

    Parameters
    ----------
    communication : CommunicationOptions, optional
        How the workers of ``multi_worker_mirrored`` exchange gradients.
    variable_partitioner : MinSizePartitioner or FixedShardsPartitioner, optional
        How ``parameter_server`` spreads large variables over the parameter servers.
    local_steps : LocalSteps, optional
        Makes the workers of ``multi_worker_mirrored`` average their models after some steps,
        instead of exchanging gradients in each.

    Raises
    ------
    InvalidArgument
        An object has another class, such as TensorFlow's of the same name.
    """

    communication: CommunicationOptions | None = None
    variable_partitioner: Partitioner | None = None
    local_steps: LocalSteps | None = None

    def __post_init__(self) -> None:
        _check_type("communication", self.communication, CommunicationOptions)
        partitioners = (MinSizePartitioner, FixedShardsPartitioner)
        _check_type("variable_partitioner", self.variable_partitioner, *partitioners)
        _check_type("local_steps", self.local_steps, LocalSteps)


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """What to do with event files. ``tensorboard=True`` is short for ``TensorBoard()``.

    Parameters
    ----------
    serve : bool, default True
        Serve TensorBoard beside the chief and print its URL.
    copy_to : str or Path, optional
        A folder, such as ``"s3://logs/flights"``, to which the event files of ``ctx.callbacks()``
        are copied while they grow; see ``docs/files.md``.

    Raises
    ------
    InvalidArgument
        ``serve`` isn't a bool, or ``copy_to`` no path.
    """

    serve: bool = True
    copy_to: str | Path | None = None

    def __post_init__(self) -> None:
        boolean("TensorBoard(serve=)", self.serve)
        if self.copy_to is not None:
            path("TensorBoard(copy_to=)", self.copy_to)

    @classmethod
    def of(cls, given: Any) -> TensorBoard:
        """Return what ``tensorboard=`` means."""
        if isinstance(given, cls):
            return given
        if isinstance(given, bool):
            return cls(serve=given)
        raise InvalidArgument(
            f"tensorboard= must be True, False or a TensorBoard(…); got {given!r}."
        )


@dataclass(frozen=True)
class TrainingOptions:
    """How the training processes train.

    `backend`: Keras 3's backend.
    `checkpoint_every`: In steps; None: at each epoch's end.
    """

    strategy: str
    backend: str = "tensorflow"
    seed: int | None = None
    checkpoint_every: int | None = None
    tensorboard: TensorBoard = field(default_factory=partial(TensorBoard, serve=False))
    distribution: Distribution = field(default_factory=Distribution)
    programs: Programs = field(default_factory=Programs)


@dataclass(frozen=True)
class HostOptions:
    """The settings of the hosts of training processes.

    `environment`: Environment variables of the training process.
    `default_folder`: See `gridflow._launch.base.Placement`; known once the job is placed.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    default_folder: str = ""


def _check_type(name: str, value: Any, *allowed: type) -> None:
    if value is not None and not isinstance(value, allowed):
        names = " or ".join(kind.__name__ for kind in allowed)
        raise InvalidArgument(
            f"Distribution({name}=) must be gridflow's {names}; got {type(value).__name__}."
        )
