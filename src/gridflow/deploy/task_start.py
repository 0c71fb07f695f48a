"""How a rendered task starts: the arguments of ``gridflow launch`` and its variables."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._spec.cluster import EVALUATOR, role_variables
from gridflow._spec.network import LAST_PORT
from gridflow.deploy.description.description import START_TIMEOUT
from gridflow.deploy.description.problems import Problem, refuse
from gridflow.deploy.inside.finish import FINISH, GIVE_UP, MEET

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job

#: The exit code of every retryable failure, for targets that can only match single codes.
RETRYABLE: Final = 130
PERMANENT: Final = tuple(range(1, 128))
#: Seconds that a pod may take to start. A controller's deadline counts from before the start, and
#: deletes pods with their output. So the launcher enforces the job's deadline, with its own exit
#: code and message. The controller's deadline is later, for pods that never start.
UNSTARTED: Final = 600


def start_words(
    job: Job,
    *,
    restarts: bool = False,
    pod_restarts: bool = False,
    deadline: bool = False,
    one_retryable_code: bool = False,
) -> list[str]:
    """Return the container's command up to the user's program.

    `restarts`: Restart inside the container, for targets that can't tell failures apart.
    `pod_restarts`: Pass on how the target restarts the container, so that the last failure is
        recognized.
    `deadline`: Enforce the job's deadline, for targets that don't, or that count anew at each
        start.
    `one_retryable_code`: Exit with `RETRYABLE` after every retryable failure.
    """
    words = ["gridflow", "launch"]
    if job.classic_flags:
        words.append("--classic-flags")
    if job.start_timeout != START_TIMEOUT:
        words.append(f"--resolve-timeout={job.start_timeout}")
    if restarts:
        words.append(f"--restart-policy={job.restart_policy}")
        if job.restart_policy != "never":
            words.append(f"--restart-limit={job.restart_limit}")
    if pod_restarts:
        words.append(f"--pod-restart-policy={job.restart_policy}")
        words.append(f"--pod-restart-limit={job.restart_limit}")
    if deadline and job.deadline is not None:
        words.append(f"--deadline={job.deadline}")
    if one_retryable_code:
        words.append(f"--retryable-exit-code={RETRYABLE}")
    return words


def program_words(job: Job, role: str) -> list[str]:
    """Return the rest of the command: ``--`` and the program; empty for a standard server."""
    command = job.command_of(role)
    return ["--", *command] if command else []


def addresses(
    job: Job, host: Callable[[str, int], str], port: Callable[[str, int], int]
) -> dict[str, list[str]]:
    """Return the addresses of a job's tasks by role, including the data service, not evaluators."""
    return {
        name: [f"{host(name, index)}:{port(name, index)}" for index in range(role.replicas)]
        for name, role in job.role_items()
        if name != EVALUATOR
    }


def tasks(job: Job) -> list[tuple[str, int]]:
    """Return the role and index of each task."""
    return [(name, index) for name, role in job.role_items() for index in range(role.replicas)]


@dataclass(frozen=True)
class News:
    """Addresses through which tasks learn that others have ended, by role.

    For targets that don't stop the remaining tasks themselves.

    `followers`: Tasks that end with the training: servers and an evaluator.
    `others`: Tasks that only end early if another task has failed permanently.
    `meeting`: Tasks that end together, on targets where a controller does everything else.
    """

    followers: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)
    meeting: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.followers or self.others or self.meeting)

    def __contains__(self, role: object) -> bool:
        return role in self.followers or role in self.others or role in self.meeting

    def variables(self) -> dict[str, str]:
        """Return the variables from which ``gridflow launch`` reads the addresses."""
        named = {FINISH: self.followers, GIVE_UP: self.others, MEET: self.meeting}
        return {
            name: json.dumps(addresses, separators=(",", ":"))
            for name, addresses in named.items()
            if addresses
        }


def news(job: Job, host: Callable[[str, int], str], port: Callable[[str, int], int]) -> News:
    """Return the addresses through which a job's tasks hear of each other; empty for one task.

    Raises `JobError`: If there aren't that many ports.
    """
    if job.tasks == 1:
        return News()
    highest = max(port(name, index) for name, index in tasks(job))
    if highest > LAST_PORT:
        reason = f"{job.port} is too high: the tasks' ports go up to {highest}, "
        refuse([Problem("port", f"{reason}and the highest port is {LAST_PORT}.")])
    everybody = {
        name: [f"{host(name, i)}:{port(name, i)}" for i in range(role.replicas)]
        for name, role in job.role_items()
    }
    followers = {name: everybody.pop(name) for name in job.followers}
    return News(followers, everybody)


def meeting(job: Job, host: Callable[[str, int], str]) -> News:
    """Return the addresses at which the tasks of the main role wait for each other to end.

    For targets whose controller stops all other tasks. The DNS name of an ended task disappears. So
    no task may end before the others have resolved it, and a restarted task needs the others again.
    """
    name = job.main_role
    count = job.roles[name].replicas
    hosts = [f"{host(name, index)}:{job.port + 1}" for index in range(count)]
    return News(meeting={name: hosts}) if count > 1 else News()


def start_variables(
    role: str, index: int | None, cluster: dict[str, list[str]], news: News | None = None
) -> dict[str, str]:
    """Return the variables that tell ``gridflow launch`` its task and whom to notify."""
    env = role_variables(role, index, {**cluster})
    return {**env, **(news.variables() if news else {})}


def ports_on_one_host(job: Job) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Return a port for each task, counting up from the job's port, and each task's second port."""
    first = {task: job.port + place for place, task in enumerate(tasks(job))}
    second = {task: port + job.tasks for task, port in first.items()} if job.tasks > 1 else {}
    return first, second


def kubernetes_text(text: str) -> str:
    """Escape ``$(NAME)``, which Kubernetes expands in commands, arguments and variables."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text
