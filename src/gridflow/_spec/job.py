"""One job's settings: created once in the driver, and sent whole to all who need them.

A new option is a field of its group in `gridflow._spec.option_groups`, and a line where it is used:
groups arrive whole in agents and training processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gridflow._spec import backends, strategies
from gridflow._spec.gpus import GpuNeed, GpuOptions
from gridflow._spec.option_checks import START_TIMEOUT
from gridflow._spec.option_groups import Deadlines, HostOptions, TrainingOptions
from gridflow._spec.roles import TRAINING_ROLES
from gridflow._spec.tasks import Part, Role, parts_of
from gridflow.errors import InvalidArgument

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
    `max_replacements`: How many ranks of a group may be replaced while the others go on.
    `least`: With how many workers a group goes on while others are replaced. Default: all of them.
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
    max_replacements: int = 0
    least: int | None = None

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

    def with_workers(self, number: int) -> JobSpec:
        """Return the settings of a job with fewer workers, which are all of its tasks."""
        roles = tuple(replace(role, count=number) for role in self.roles)
        return replace(self, tasks=self.tasks[:number], gpus=self.gpus[:number], roles=roles)

    def check_replacements(self) -> None:
        """Reject a job whose ranks can't be replaced while the others go on.

        Raises `InvalidArgument`: It asks for that.
        """
        training = self.training
        has_gpus = any(need.count for need in self.gpus)
        reasons = {
            f"strategy={training.strategy!r}": not strategies.of(
                training.strategy
            ).exchanges_gradients,
            f"backend={training.backend!r}": not backends.of(training.backend).can_replace,
            "gpus=": has_gpus,
            "Distribution(local_steps=)": training.distribution.local_steps is not None,
            "Programs(patches=False)": not training.programs.patches,
        }
        found = [reason for reason, holds in reasons.items() if holds]
        possible = (
            f"strategy='multi_worker_mirrored' and backend={backends.replacing()} without GPUs"
        )
        if self.least is not None and found:
            raise InvalidArgument(
                f"workers can't come and go (num_workers=({self.least}, {self.num_workers})) with "
                f"{found[0]}: use {possible}, or num_workers={self.num_workers}."
            )
        if self.max_replacements and found:
            raise InvalidArgument(
                f"workers can't be replaced while the others go on with {found[0]}: use "
                f"{possible}, or max_restarts={self.max_replacements}, which restarts the group "
                "from its last checkpoint."
            )

    @property
    def num_workers(self) -> int:
        """How many tasks train."""
        return sum(task.role in TRAINING_ROLES for task in self.tasks)
