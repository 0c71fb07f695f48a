"""How a rendered task starts: the words of ``gridflow launch`` and the variables that it reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from gridflow.spec.cluster import EVALUATOR
from gridflow.spec.tf_config import role_variables

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job

#: The exit code of every retryable failure where a target can name single codes only.
RETRYABLE: Final = 130
PERMANENT: Final = tuple(range(1, 128))


def start_words(
    job: Job,
    *,
    restarts: bool = False,
    one_retryable_code: bool = False,
    stay: bool = False,
) -> list[str]:
    """Return the container's command up to the program's own words.

    Parameters
    ----------
    job : Job
    restarts : bool
        Restart inside the container, where the target can't tell failures apart.
    one_retryable_code : bool
        End with `RETRYABLE` after every retryable failure.
    stay : bool
        Stay alive once finished, for targets that restart whatever ends.
    """
    words = ["gridflow", "launch"]
    if job.classic_flags:
        words.append("--classic-flags")
    if restarts:
        words.append(f"--restart-policy={job.restart_policy}")
        if job.restart_policy != "never":
            words.append(f"--restart-limit={job.restart_limit}")
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
    """Return the cluster spec of a job, without the evaluator, which is no part of it."""
    return {
        name: [f"{host(name, index)}:{port(name, index)}" for index in range(role.replicas)]
        for name, role in job.role_items()
        if name != EVALUATOR
    }


def tasks(job: Job) -> list[tuple[str, int]]:
    """Return every role and index of a job."""
    return [(name, index) for name, role in job.role_items() for index in range(role.replicas)]


def start_variables(
    role: str,
    index: int | None,
    cluster: dict[str, list[str]],
    finish: dict[str, list[str]] | None = None,
) -> dict[str, str]:
    """Return the variables by which ``gridflow launch`` knows who it is.

    ``finish`` are the addresses where servers hear that training is over, on targets that would
    leave them running.
    """
    env = role_variables(role, index, {**cluster})
    if finish:
        env["GRIDFLOW_FINISH"] = json.dumps(finish, separators=(",", ":"))
    return env


def finish_addresses(
    job: Job, host: Callable[[str, int], str], port: Callable[[str, int], int]
) -> dict[str, list[str]]:
    """Return where each server hears that training is over, by role."""
    return {
        name: [f"{host(name, i)}:{port(name, i)}" for i in range(job.roles[name].replicas)]
        for name in job.servers
    }


def ports_on_one_host(job: Job) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    """Return a port for each task, counting up from the job's, and the servers' second ones."""
    first = {task: job.port + place for place, task in enumerate(tasks(job))}
    servers = [task for task in tasks(job) if task[0] in job.servers]
    return first, {task: job.port + job.tasks + place for place, task in enumerate(servers)}


def kubernetes_text(text: str) -> str:
    """Escape a text against the expansion of ``$(NAME)`` in commands, arguments and variables."""
    return text.replace("$", "$$") if "$(" in text or "$$" in text else text
