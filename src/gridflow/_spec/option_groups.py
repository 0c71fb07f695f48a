"""The groups of options of `gridflow.TensorflowDistributor`. They are checked when created.

Each is created once, in the driver, and sent whole to where it is read. So a new option is a field
here and a line where it is used. `TrainingOptions` and `HostOptions` hold what the distributor
takes as keywords. More groups are in `gridflow._spec.network`, `gridflow._spec.gpus` and
`gridflow._coordinator.policies`.

Partitioners have the names and meanings of ``tf.distribute.experimental.partitioners``, which can't
be used where the job is described: the driver needs no TensorFlow.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gridflow._spec.communication import CommunicationOptions, LocalSteps
from gridflow._spec.network import LAST_PORT
from gridflow._spec.option_checks import (
    boolean,
    path,
    seconds,
    size_in_bytes,
    time_limit,
    whole_number,
)
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class MinSizePartitioner:
    """Cut a variable along its first axis into as many shards of a minimal size as possible.

    Parameters
    ----------
    min_shard_bytes : int, default 262,144
        The minimal size of a shard.
    max_shards : int, optional
        Default: one on each parameter server.

    Raises
    ------
    InvalidArgument
        A number is below 1.
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int | None = None

    def __post_init__(self) -> None:
        whole_number("min_shard_bytes", self.min_shard_bytes, 1)
        if self.max_shards is not None:
            whole_number("max_shards", self.max_shards, 1)

    def to_tensorflow(self, num_ps: int) -> Any:
        """Return TensorFlow's partitioner of the same name."""
        import tensorflow as tf

        return tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=self.min_shard_bytes, max_shards=self.max_shards or num_ps
        )


@dataclass(frozen=True)
class FixedShardsPartitioner:
    """Cut every variable along its first axis into the same number of shards.

    Parameters
    ----------
    num_shards : int

    Raises
    ------
    InvalidArgument
        The number is below 1.
    """

    num_shards: int

    def __post_init__(self) -> None:
        whole_number("num_shards", self.num_shards, 1)

    def to_tensorflow(self, num_ps: int) -> Any:  # noqa: ARG002 (the same call for both)
        """Return TensorFlow's partitioner of the same name."""
        import tensorflow as tf

        return tf.distribute.experimental.partitioners.FixedShardsPartitioner(self.num_shards)


Partitioner = MinSizePartitioner | FixedShardsPartitioner


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


#: Of a process: the ``host:port`` of the dispatcher, where there is one.
DATA_SERVICE: Final = "GRIDFLOW_DATA_SERVICE"
#: Of a dispatcher: the folder of its journal, on its host or in a store that TensorFlow can write
#: to. Default: a folder that goes with the task.
JOURNAL: Final = "GRIDFLOW_DATA_JOURNAL"

#: How data workers share a dataset, by the names of
#: ``tf.data.experimental.service.ShardingPolicy``.
Sharding = Literal["off", "dynamic", "file", "file_or_data", "hint"]
SHARDINGS: Final = get_args(Sharding)
#: What is done to elements on their way; None: nothing.
COMPRESSIONS: Final = ("auto", "snappy", None)


@dataclass(frozen=True)
class DataServiceUse:
    """What a task has read through the data service so far, in its present process.

    Attributes
    ----------
    waited : float
        Seconds in which it waited for an element. Where that is a large part of `elapsed`, more
        data workers help.
    elapsed : float
        Seconds from its first wait to the end of its last.
    elements : mapping of str to int
        Elements by the data worker that made them, such as ``data:0``; ``unknown`` of a service
        that isn't gridflow's.
    """

    waited: float
    elapsed: float
    elements: Mapping[str, int]

    @classmethod
    def total(cls, uses: Sequence[DataServiceUse]) -> DataServiceUse:
        """Return what a task has read of several datasets."""
        return cls(
            waited=sum(each.waited for each in uses),
            elapsed=sum(each.elapsed for each in uses),
            elements=dict(sum((Counter(each.elements) for each in uses), Counter())),
        )

    def __str__(self) -> str:
        share = self.waited / self.elapsed if self.elapsed else 0.0
        made = ", ".join(f"{count:,} from {task}" for task, count in self.elements.items())
        return (
            f"waited {self.waited:.1f} of {self.elapsed:.1f} s ({share:.0%}) for the data service; "
            f"elements: {made or 'none'}"
        )


def read_address(what: str, address: object) -> str:
    """Return the ``host:port`` of a dispatcher.

    Raises
    ------
    InvalidArgument
        It isn't written so.
    """
    if isinstance(address, str):
        host, _, port = address.removeprefix("grpc://").rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) <= LAST_PORT
        if host and "/" not in host and is_port:
            return f"{host}:{port}"
    raise InvalidArgument(
        f"{what} is the address of a dispatcher, 'host:port' or 'grpc://host:port'; got "
        f"{address!r}."
    )
