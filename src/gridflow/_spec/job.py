"""One job's settings, and the tasks and parts that follow from them. Pure.

The settings are created once in the driver, and sent whole to all who need them.

A new option is a field of its group in `gridflow._spec.option_groups`, and a line where it is used:
groups arrive whole in agents and training processes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gridflow._spec import backends, strategies
from gridflow._spec.cluster import (
    CHIEF,
    DATA,
    DISPATCHER,
    MOST_TASKS,
    PS,
    ROLES,
    TRAINING_ROLES,
    WORKER,
    Task,
    facts_of,
    runs_no_command,
)
from gridflow._spec.gpus import VISIBLE, GpuNeed, GpuOptions, check_role
from gridflow._spec.option_checks import START_TIMEOUT, read_environment, read_words, whole_number
from gridflow._spec.option_groups import Deadlines, HostOptions, TrainingOptions
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gridflow._feed.normalize import FeedOptions


@dataclass(frozen=True)
class Role:
    """A role of a job, with its number of tasks.

    Parameters
    ----------
    name : {'chief', 'worker', 'ps', 'evaluator', 'data', 'dispatcher'}
        ``data`` are workers of TensorFlow's data service; a job that has some gets a dispatcher.
    count : int, default 1
        Number of tasks. A job has at most one chief, one evaluator and one dispatcher.
    gpus : int or float, optional
        GPUs of each of its tasks, or a fraction of one; see ``docs/gpus.md``. Only for tasks that
        train.
    env : dict, optional
        Environment variables of its tasks, in addition to the job's, which they override.
    command : sequence of str, optional
        Under ``strategy="command"``, the words that its tasks run instead of the job's. Empty: a
        standard TensorFlow server, for workers beside a chief. A ``ps`` without its own command
        is such a server, too.

    Raises
    ------
    InvalidArgument
        An argument is invalid.

    Examples
    --------
    >>> from gridflow import Role
    >>> roles = [Role("ps", 2), Role("worker", 4, gpus=1, env={"NCCL_DEBUG": "INFO"})]
    >>> sum(role.count for role in roles)
    6
    """

    name: str
    count: int = 1
    gpus: float | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    command: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.name not in ROLES:
            hint = did_you_mean(self.name, ROLES) if isinstance(self.name, str) else ""
            raise InvalidArgument(
                f"unknown role {self.name!r}; supported: {', '.join(ROLES)}.{hint}"
            )
        whole_number(f"the count of role {self.name!r}", self.count, 1, MOST_TASKS)
        if facts_of(self.name).is_single and self.count > 1:
            raise InvalidArgument(f"a job can have only one {self.name}; got {self.count}.")
        check_role(self.name, self.gpus)
        what = f"of role {self.name!r}"
        object.__setattr__(self, "env", read_environment(f"env {what}", self.env))
        if self.command is not None:
            if facts_of(self.name).is_data_service:
                raise InvalidArgument(
                    f"tasks of role {self.name!r} run TensorFlow's data service, and no command; "
                    f"got command={self.command!r}. Leave it out."
                )
            object.__setattr__(self, "command", read_words(f"the command {what}", self.command))

    @property
    def is_standard_server(self) -> bool:
        """Whether its tasks are standard TensorFlow servers while others run commands."""
        return self.command == () or (self.command is None and runs_no_command(self.name))


@dataclass(frozen=True)
class Part:
    """What a task does in a job.

    `runs_function`: Whether it runs the user's function or command; otherwise it is a standard
        TensorFlow server.
    `is_awaited`: The training is over when all such tasks have returned.
    `is_fed`: Whether it gets rows of ``run(data=…)``.
    `is_replaced`: Whether its process is restarted when it dies, while the others go on.
    `is_pushed`: Whether it gets pushed rows (`JobHandle.feed`).
    """

    task: Task
    runs_function: bool
    is_awaited: bool
    is_fed: bool
    is_replaced: bool
    is_pushed: bool

    @property
    def serves(self) -> bool:
        """Whether it serves others until it is told to end."""
        facts = facts_of(self.task.role)
        return not self.is_awaited and (facts.is_in_cluster or facts.is_data_service)


def make_tasks(roles: Iterable[Role], strategy: str) -> tuple[Task, ...]:
    """Return the tasks by rank; those that train come first.

    They include those that a strategy adds, such as the chief of ``parameter_server``.

    Raises `InvalidArgument`: The roles don't form a job, or not one of this strategy.
    """
    given = list(roles)
    for role in given:
        if not isinstance(role, Role):
            raise InvalidArgument(
                f"roles= must be a list of Role, such as [Role('ps', 2), Role('worker', 4)]; it "
                f"contains {role!r}."
            )
    twice = [name for name, times in Counter(role.name for role in given).items() if times > 1]
    if twice:
        raise InvalidArgument(
            f"duplicate role {twice[0]!r}: list it once, with the number of all its tasks."
        )
    counts = {role.name: role.count for role in given}
    if not any(name in counts for name in TRAINING_ROLES):
        raise InvalidArgument(
            f"no role trains: roles= needs a chief or a worker; got {', '.join(counts) or 'none'}."
        )
    facts = strategies.of(strategy)
    if facts.runs_programs:
        _check_commands(given)
    for name in facts.needs:
        if name not in counts:
            raise InvalidArgument(
                f"strategy={strategy!r} needs at least one {name}: "
                "roles=[Role('ps', 2), Role('worker', 4)]."
            )
    if DISPATCHER in counts and DATA not in counts:
        raise InvalidArgument(
            "a dispatcher alone prepares no data: add data workers, Role('data', 2)."
        )
    for name in (*facts.adds, *((DISPATCHER,) if DATA in counts else ())):
        counts.setdefault(name, 1)
    if PS in counts and not facts.has_servers:
        raise InvalidArgument(
            f"strategy={strategy!r} doesn't support parameter servers. Leave role 'ps' out, or use "
            f"{' or '.join(repr(name) for name in strategies.with_servers())}."
        )
    return tuple(Task(name, index) for name in ROLES for index in range(counts.get(name, 0)))


def default_strategy(roles: Iterable[Role]) -> str:
    given = [role for role in roles if isinstance(role, Role)]
    counts = {role.name: role.count for role in given}
    if any(role.command is not None for role in given):
        return strategies.COMMAND
    if PS in counts:
        return "parameter_server"
    training = sum(counts.get(name, 0) for name in TRAINING_ROLES)
    return "multi_worker_mirrored" if training > 1 else "none"


def parts_of(tasks: Sequence[Task], strategy: str, roles: Iterable[Role] = ()) -> tuple[Part, ...]:
    """Return what each task does, in the order of the tasks.

    The roles matter if they run programs or are standard servers.
    """
    facts = strategies.of(strategy)
    servers = {role.name for role in roles if role.is_standard_server and facts.runs_programs}
    # As under their chief's strategy: workers without variables are dispensable.
    replaced = {*facts.is_replaced, *(servers & {WORKER}), DISPATCHER, DATA}
    return tuple(
        Part(
            task,
            runs_function=task.role in facts.runs_function and task.role not in servers,
            is_awaited=task.role in facts.is_awaited and task.role not in servers,
            is_fed=task.role in facts.is_fed,
            is_replaced=task.role in replaced,
            is_pushed=task.role in (facts.is_fed if facts.is_pushed is None else facts.is_pushed),
        )
        for task in tasks
    )


def _check_commands(roles: Iterable[Role]) -> None:
    """Refuse jobs in which only standard servers would run."""
    servers = {role.name: role.is_standard_server for role in roles}
    for name, is_server in servers.items():
        if is_server and not facts_of(name).can_serve:
            raise InvalidArgument(
                f"role {name!r} has an empty command, but only workers and ps can be standard "
                "TensorFlow servers."
            )
    if servers.get(WORKER) and CHIEF not in servers:
        raise InvalidArgument(
            "role 'worker' has an empty command: all workers would be standard TensorFlow "
            "servers, without a chief."
        )


def gpus_of(
    tasks: Sequence[Task], roles: Iterable[Role], strategy: str, environment: Mapping[str, str]
) -> tuple[GpuNeed, ...]:
    """Return what each task needs. Parameter servers and an evaluator never get a GPU.

    Raises `InvalidArgument`: When ``env=`` and ``gpus=`` both say which GPUs there are.
    """
    given = {}
    for role in roles:
        need = given[role.name] = GpuNeed.parse(f"gpus of role {role.name!r}", role.gpus)
        seen = {**environment, **role.env}.get(VISIBLE)
        if seen is not None and need.count is not None:
            raise InvalidArgument(
                f"env={{{VISIBLE!r}: {seen!r}}} and gpus= both decide which GPUs a task sees. "
                "Leave one of them out."
            )
    # The chief of parameter servers hands out steps; it computes none unless a role says so.
    idle = set(ROLES) - set(TRAINING_ROLES)
    if strategies.of(strategy).hands_out_steps and CHIEF not in given:
        idle.add(CHIEF)
    return tuple(GpuNeed(0) if t.role in idle else given.get(t.role, GpuNeed()) for t in tasks)


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
