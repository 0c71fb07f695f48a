"""Jobs that live inside ``gridflow run``: on this machine, or on the Spark cluster at hand."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import sys
from typing import TYPE_CHECKING, Any

from gridflow.deploy.commands import warn
from gridflow.deploy.description.problems import JobError
from gridflow.deploy.drivers.base import say
from gridflow.deploy.inside.group import Group
from gridflow.deploy.pods import s3_settings
from gridflow.deploy.registry import get_target
from gridflow.deploy.rendering import inexpressible
from gridflow.errors import MissingDependency, TrainingFailed
from gridflow.spec.cluster import WORKER

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job

#: Whose rules hold for a job that this process runs.
_RULES = {"local": "local", "spark": "spark-submit-standalone"}


def run_inside(job: Job, target: str, *, lossy: bool = False, as_json: bool = False) -> int:
    """Run a job to its end and return 0 if it succeeded."""
    lost = inexpressible(job, dataclasses.replace(get_target(_RULES[target]), name=target))
    if lost and not lossy:
        raise JobError(lost)
    for problem in lost:
        warn(str(problem))
    restarts = 0 if job.restart_policy == "never" else job.restart_limit
    launcher, session = _launcher(target, job)
    held = contextlib.ExitStack()
    group = make_group(job, held)
    if any(str(member) != f"{WORKER}:{rank}" for rank, member in enumerate(group.members)):
        roles = ", ".join(f"{WORKER}:{rank} is {who}" for rank, who in enumerate(group.members))
        say(f"the output is labelled by rank: {roles}")
    # With --json standard output has nothing but JSON.
    beside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    record: dict[str, Any] = {"job": job.name, "succeeded": False}
    try:
        with held, beside:
            result = group.run(launcher, restarts=restarts)
        record |= {"succeeded": True, "attempts": len(result.attempts)}
        record["job_dir"] = str(result.job_dir)
        say(f"{job.name} succeeded; its logs lie in {result.job_dir}")
    except TrainingFailed as error:
        record["error"] = str(error)
        say(str(error))
    finally:
        if session is not None:
            session.stop()
    if as_json:
        sys.stdout.write(json.dumps(record, indent=2) + "\n")
    return 0 if record["succeeded"] else 1


def make_group(job: Job, held: contextlib.ExitStack) -> Group:
    """Return what the tasks of a job run; their ports are kept from others until `held` ends."""
    return Group(
        counts={name: role.replicas for name, role in job.role_items()},
        commands={name: job.command_of(name) for name, _ in job.role_items()},
        env={name: {**s3_settings(job), **job.env_of(name)} for name, _ in job.role_items()},
        classic_flags=job.classic_flags,
        finish={
            name: [f"localhost:{_hold_port(held)}" for _ in range(job.roles[name].replicas)]
            for name in job.servers
        },
    )


def _launcher(target: str, job: Job) -> tuple[Any, Any]:
    if target == "local":
        from gridflow.launch.local import LocalLauncher

        return LocalLauncher(), None
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        reason = "pyspark isn't installed: pip install 'gridflow[spark]'."
        raise MissingDependency(reason) from error
    builder = SparkSession.builder.appName(job.name)
    for key, value in (job.spark.conf if job.spark else {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    from gridflow.launch.spark.launcher import SparkLauncher

    return SparkLauncher(session), session


def _hold_port(held: contextlib.ExitStack) -> int:
    """Return a free port of the loopback interface that nobody but the job's own server gets.

    The holder is bound, but doesn't listen: with SO_REUSEPORT on both sides the server can bind it.
    """
    holder = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])
