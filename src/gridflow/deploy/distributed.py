"""Translates a job into options of `gridflow.TensorflowDistributor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.cluster import TRAINING_ROLES, facts_of
from gridflow._spec.job import Role
from gridflow._spec.option_groups import Deadlines, LaunchOptions, Programs
from gridflow._spec.strategies import COMMAND
from gridflow.deploy.description.problems import JobError, Problem
from gridflow.deploy.pods import s3_settings
from gridflow.deploy.rendering import inexpressible
from gridflow.deploy.targets.registry import get_target

if TYPE_CHECKING:
    from gridflow._coordinator.policies import RestartPolicy
    from gridflow.deploy.description.description import Job

#: Targets for which ``gridflow run`` is the driver, with the most similar rendering target.
DRIVEN: Final = {"local": "local", "spark": "spark-submit-standalone"}
#: Features that those documents can't express, but the distributor can.
_DISTRIBUTOR_CAN: Final = frozenset({"resources.gpu"})


def cannot(job: Job, target: str) -> list[Problem]:
    """Return the fields in use that ``gridflow run`` can't apply on a target, with the reason."""
    return inexpressible(job, get_target(DRIVEN[target]), name=target, but=_DISTRIBUTOR_CAN)


def distributor_options(job: Job) -> dict[str, Any]:
    """Return the parameters of `gridflow.TensorflowDistributor` for a job.

    The program to run is ``job.command_of(job.main_role)``.

    Raises `JobError`: If a role that never gets GPUs requests some.
    """
    refused = [
        Problem(f"roles.{name}.resources.gpu", f"a task of role {name!r} never gets a GPU here.")
        for name, role in job.role_items()
        if role.resources.gpu and name not in TRAINING_ROLES
    ]
    if refused:
        raise JobError(refused)
    from gridflow._coordinator.policies import Restarts

    return {
        "strategy": COMMAND,
        "roles": [
            Role(
                name,
                role.replicas,
                gpus=role.resources.gpu or None,
                env=job.env_of(name),
                command=None if facts_of(name).is_data_service else job.command_of(name),
            )
            for name, role in job.role_items()
        ],
        "env": s3_settings(job),
        "programs": Programs(classic_flags=job.classic_flags),
        "restarts": Restarts(
            policy=_restart_policy(job),
            # A job without restarts isn't restarted after preemptions either.
            max_preemptions=None if _may_restart(job) else 0,
        ),
        "start_timeout": job.start_timeout,
        # gridflow can't see the steps of an external program, nor preload its imports.
        "deadlines": Deadlines(step=None, run=job.deadline),
        "launch_options": LaunchOptions(warm_seconds=0),
        "progress": False,
    }


def _may_restart(job: Job) -> bool:
    return job.restart_policy != "never" and job.restart_limit > 0


def _restart_policy(job: Job) -> RestartPolicy:
    from gridflow._coordinator.policies import MaxRestarts, RetryableExits

    if job.restart_policy == "never":
        return MaxRestarts(0)
    if job.restart_policy == "exit-code":
        return RetryableExits(job.restart_limit)
    return MaxRestarts(job.restart_limit)
