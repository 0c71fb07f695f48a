"""One job's settings: created once in the driver, and sent whole to all who need them.

A new option is a field of its group in `gridflow._spec.option_groups`, and a line where it is used:
groups arrive whole in agents and training processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from gridflow._spec.gpus import GpuNeed, GpuOptions
from gridflow._spec.option_checks import START_TIMEOUT
from gridflow._spec.option_groups import Deadlines, HostOptions, TrainingOptions
from gridflow._spec.roles import TRAINING_ROLES
from gridflow._spec.tasks import Part, Role, parts_of

if TYPE_CHECKING:
    from gridflow._feed.normalize import FeedOptions
    from gridflow._spec.cluster import Task


@dataclass(frozen=True)
class JobSpec:
    """Everything about a job except its function and its rows.

    `tasks`: By rank; those that train come first.
    `start_timeout`: Seconds for all tasks to register, and again for all to start.
    `gpus`: What each task needs, in order; empty: what the target gives.
    `roles`: The roles that the user gave. A role of `tasks` that is missing here was added.
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
