"""How a rendered task starts: the words of ``gridflow launch`` and the variables that it reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow._spec.roles import EVALUATOR
from gridflow._spec.tf_config import role_variables
from gridflow.deploy.description.description import START_TIMEOUT
from gridflow.deploy.inside.finish import FINISH, GIVE_UP, MEET

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job

#: The exit code of every retryable failure where a target can name single codes only.
RETRYABLE: Final = 130
PERMANENT: Final = tuple(range(1, 128))
#: Seconds that a pod may need to come up. A controller's own deadline deletes pods with their
#: output, and starts to count before they have begun: so the launcher ends them, with a code and a
#: word of its own, and the controller those that never came up.
UNSTARTED: Final = 600


def start_words(
    job: Job,
    *,
    restarts: bool = False,
    pod_restarts: bool = False,
    deadline: bool = False,
    one_retryable_code: bool = False,
    stay: bool = False,
) -> list[str]:
    """Return the container's command up to the program's own words.

    Parameters
    ----------
    job : Job
    restarts : bool
        Restart inside the container, where the target can't tell failures apart.
    pod_restarts : bool
        Say how the target restarts the container, so that the last failure is known as such.
    deadline : bool
        End the program after the job's deadline, where the target ends nothing, or counts anew at
        each start.
    one_retryable_code : bool
        End with `RETRYABLE` after every retryable failure.
    stay : bool
        Stay alive once finished, for targets that restart whatever ends.
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
    if stay:
        words.append("--stay")
        if job.marathon and job.marathon.finished_dir:
            words.append(f"--finished-dir={job.marathon.finished_dir}")
    return words


def program_words(job: Job, role: str) -> list[str]:
    """Return the rest of the command: the program after ``--``, nothing for a standard server."""
    command = job.command_of(role)
    return ["--", *command] if command else []


def addresses(
    job: Job, host: Callable[[str, int], str], port: Callable[[str, int], int]
) -> dict[str, list[str]]:
    """Return the cluster spec of a job, and who is its data service; without the evaluator."""
    return {
        name: [f"{host(name, index)}:{port(name, index)}" for index in range(role.replicas)]
        for name, role in job.role_items()
        if name != EVALUATOR
    }


def tasks(job: Job) -> list[tuple[str, int]]:
    """Return every role and index of a job."""
    return [(name, index) for name, role in job.role_items() for index in range(role.replicas)]


@dataclass(frozen=True)
class News:
    """Where tasks hear of the ends of others, by role, on targets that don't end them themselves.

    Attributes
    ----------
    followers : dict
        Those that end with the training: servers and an evaluator.
    others : dict
        Those that end only when another task has failed for good.
    meeting : dict
        Those that end together, where a controller sees to all else.
    """

    followers: dict[str, list[str]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)
    meeting: dict[str, list[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.followers or self.others or self.meeting)

    def __contains__(self, role: object) -> bool:
        return role in self.followers or role in self.others or role in self.meeting

    def variables(self) -> dict[str, str]:
        """Return what ``gridflow launch`` reads it from."""
        named = {FINISH: self.followers, GIVE_UP: self.others, MEET: self.meeting}
        return {
            name: json.dumps(addresses, separators=(",", ":"))
            for name, addresses in named.items()
            if addresses
        }


def news(job: Job, host: Callable[[str, int], str], port: Callable[[str, int], int]) -> News:
    """Return where each task of a job hears of the others; nowhere if it has only one."""
    if job.tasks == 1:
        return News()
    everybody = {
        name: [f"{host(name, i)}:{port(name, i)}" for i in range(role.replicas)]
        for name, role in job.role_items()
    }
    followers = {name: everybody.pop(name) for name in job.followers}
    return News(followers, everybody)


def meeting(job: Job, host: Callable[[str, int], str]) -> News:
    """Return where those hear of one another whose ends are the job's, where others end the rest.

    The name of an ended task is gone: none may end before the others have looked, and one that is
    started again needs the others once more.
    """
    name = job.main_role
    count = job.roles[name].replicas
    hosts = [f"{host(name, index)}:{job.port + 1}" for index in range(count)]
    return News(meeting={name: hosts}) if count > 1 else News()


def start_variables(
    role: str, index: int | None, cluster: dict[str, list[str]], news: News | None = None
) -> dict[str, str]:
    """Return the variables by which ``gridflow launch`` knows who it is, and whom it tells."""
    env = role_variables(role, index, {**cluster})
    return {**env, **(news.variables() if news else {})}


def ports_on_one_host(job: Job) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Return a port for each task, counting up from the job's, and each task's second one."""
    first = {task: job.port + place for place, task in enumerate(tasks(job))}
    second = {task: port + job.tasks for task, port in first.items()} if job.tasks > 1 else {}
    return first, second


def kubernetes_text(text: str) -> str:
    """Escape a text against the expansion of ``$(NAME)`` in commands, arguments and variables."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text
