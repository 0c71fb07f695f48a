"""Processes on this machine: the reference for all other targets."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, ClassVar, Final

from gridflow.deploy.pods import s3_settings
from gridflow.deploy.targets.base import Document, ScriptTarget, sides
from gridflow.deploy.targets.compose import ONE_HOST_CANNOT, required
from gridflow.deploy.targets.docker import AS_STATUS
from gridflow.deploy.targets.sidecars import tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    ports_on_one_host,
    program_words,
    start_variables,
    start_words,
    tasks,
)

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job

NO_CONTAINER: Final = "processes use the machine's own files"
UNLIMITED: Final = "processes share the machine; use compose for limits"


class LocalTarget(ScriptTarget):
    """Processes on this machine, started by a script."""

    name = "local"
    title = "Processes on this machine: the reference"
    needs = ("command",)
    cannot: ClassVar = {
        **ONE_HOST_CANNOT,
        "resources.cpu": UNLIMITED,
        "resources.memory": UNLIMITED,
        "resources.gpu": "processes share the GPUs; set CUDA_VISIBLE_DEVICES in a role's env",
        "resources.gpu_resource": "processes share the GPUs",
        "run_as_user": "processes run as the user who starts them",
        "clean_up": "a script's processes end by themselves",
        "volumes": NO_CONTAINER,
        "shared_memory": NO_CONTAINER,
        "secrets.files": NO_CONTAINER,
        "credentials.gcs": NO_CONTAINER + "; set GOOGLE_APPLICATION_CREDENTIALS",
        "labels": "processes have no labels",
        "annotations": "processes have no annotations",
    }
    leaves: ClassVar = {**sides(), "image": "the targets with containers"}

    def render(self, job: Job) -> list[Document]:
        """Return a shell script that starts all tasks and exits with the first failure's code."""
        ports, second = ports_on_one_host(job)
        cluster = addresses(job, lambda *_: "localhost", lambda role, index: ports[role, index])
        heard = news(job, lambda *_: "localhost", lambda role, i: second[role, i])
        lines = ["#!/bin/sh", "set -u", "pids="]
        lines += [f"{required(name)}; export {name}" for name in job.secret_keys]
        for role, index in tasks(job):
            env = start_variables(role, index, cluster, heard) | s3_settings(job) | job.env_of(role)
            words = ["env", *(f"{name}={value}" for name, value in env.items())]
            words += start_words(job, restarts=True, deadline=True) + program_words(job, role)
            lines.append(" ".join(shlex.quote(word) for word in words) + " &")
            lines.append('pids="$pids $!"')
        if job.tensorboard:
            words = tensorboard_words(job.tensorboard)
            lines.append(" ".join(shlex.quote(word) for word in words) + " &")
            lines.append("board=$!")
        stop = "kill $pids $board" if job.tensorboard else "kill $pids"
        lines.append(f"trap '{stop} 2>/dev/null' INT TERM")
        lines += ["status=0", "for pid in $pids; do", '  code=0; wait "$pid" || code=$?']
        lines += [f"  {AS_STATUS}", "done"]
        if job.tensorboard:
            lines.append('kill "$board"')
        lines.append('exit "$status"')
        return [Document("run.sh", "\n".join(lines) + "\n")]
