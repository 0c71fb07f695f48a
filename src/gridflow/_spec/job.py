"""One job's settings: created once in the driver, and sent whole to all who need them.

A new option is a field of its group, here or in `gridflow._spec.option_groups`, and a line where it
is used: groups arrive whole in agents and training processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from gridflow._spec.gpus import GpuNeed, GpuOptions
from gridflow._spec.option_checks import START_TIMEOUT
from gridflow._spec.option_groups import (
    Deadlines,
    Distribution,
    LaunchOptions,
    Programs,
    Spool,
    TensorBoard,
)
from gridflow._spec.roles import TRAINING_ROLES
from gridflow._spec.tasks import Part, Role, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._feed.normalize import FeedOptions
    from gridflow._spec.cluster import Task


@dataclass(frozen=True)
class TrainingOptions:
    """How the training processes train.

    Attributes
    ----------
    strategy : str
    backend : str
        Keras 3's backend.
    seed : int or None
    checkpoint_every : int or None
        In steps; None: at each epoch's end.
    tensorboard : TensorBoard
    distribution : Distribution
    programs : Programs
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

    Attributes
    ----------
    environment : mapping of str to str
        Environment variables of the training process.
    spool : Spool
    launch : LaunchOptions
    default_folder : str
        See `gridflow._launch.base.Placement`; known once the job is placed.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    spool: Spool = field(default_factory=Spool)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    default_folder: str = ""


@dataclass(frozen=True)
class JobSpec:
    """Everything about a job except its function and its rows.

    Attributes
    ----------
    tasks : tuple of Task
        By rank; those that train come first.
    training : TrainingOptions
    feed : FeedOptions
    hosts : HostOptions
    start_timeout : float
        Seconds for all tasks to register, and again for all to start.
    deadlines : Deadlines
    gpus : tuple of GpuNeed
        What each task needs, in order; empty: what the target gives.
    gpu_options : GpuOptions
    roles : tuple of Role
        The roles that the user gave. A role of `tasks` that is missing here was added.
    """

    tasks: tuple[Task, ...]
    training: TrainingOptions
    feed: FeedOptions
    hosts: HostOptions = field(default_factory=HostOptions)
    start_timeout: float = START_TIMEOUT
    deadlines: Deadlines = field(default_factory=Deadlines)
    gpus: tuple[GpuNeed, ...] = ()
    gpu_options: GpuOptions = field(default_factory=GpuOptions)
    roles: tuple[Role, ...] = ()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What each task does, in order."""
        return parts_of(self.tasks, self.training.strategy, self.roles)

    @cached_property
    def fed(self) -> tuple[int, ...]:
        """Indices of the tasks that are fed rows."""
        return tuple(place for place, part in enumerate(self.parts) if part.is_fed)

    def environment_of(self, task: Task) -> dict[str, str]:
        """Return the variables for a task's process: the job's, overridden by its role's."""
        own = next((role.env for role in self.roles if role.name == task.role), {})
        return {**self.hosts.environment, **own}

    @property
    def num_workers(self) -> int:
        """How many tasks train."""
        return sum(task.role in TRAINING_ROLES for task in self.tasks)
