"""Plain Docker: a Dockerfile for one image with all roles, and the commands that run it."""

from __future__ import annotations

import csv
import io
import json
import shlex
from typing import TYPE_CHECKING, ClassVar, Final

from gridflow._spec.exits import Exit
from gridflow.deploy.description import rules
from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.description.problems import Problem
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets.base import Document, ScriptTarget
from gridflow.deploy.targets.compose import (
    ONE_HOST_CANNOT,
    amount,
    directories,
    required,
)
from gridflow.deploy.targets.sidecars import tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
    tasks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources

BASE: Final = {False: "python:3.11.13-slim-bookworm", True: "tensorflow/tensorflow:2.21.0-gpu"}
#: The script exits with the first task's own failure; 113 means that another task failed.
AS_STATUS: Final = (
    f'[ "$code" = 0 ] || case $status in 0|{int(Exit.GIVEN_UP)}) status=$code ;; esac'
)


def dockerfile(job: Job) -> str:
    """Return a Dockerfile with a pinned base, a non-root user, the program and gridflow."""
    gpu = any(role.resources.gpu for role in job.roles.values())
    # A gridflow wheel next to the program takes precedence over the package index.
    gridflow = '"$(ls ./gridflow-*.whl 2>/dev/null || echo gridflow)"'
    extra = "" if gpu else "'[tensorflow-cpu]'"
    return f"""\
# One image for all roles: the role comes from outside, through `gridflow launch`.
FROM {BASE[gpu]}
RUN useradd --uid {RUN_AS_USER} --create-home trainer
WORKDIR /app
COPY . /app
RUN python -m pip install --no-cache-dir {gridflow}{extra} \\
 && if [ -f requirements.txt ]; then python -m pip install --no-cache-dir -r requirements.txt; fi \\
 && install -D "$(python -c 'import gridflow.deploy.inside.spark_main as m; print(m.__file__)')" \\
    /opt/gridflow/spark_main.py
USER {RUN_AS_USER}
ENV PYTHONUNBUFFERED=1
ENTRYPOINT {json.dumps(start_words(job))}
"""


#: Files to keep out of the image, because others may read it in a registry.
IGNORED: Final = """\
secrets
configs
**/.env
**/.git
**/.aws
**/.kube
**/.ssh
**/.netrc
**/*.key
**/*.pem
**/id_rsa*
Dockerfile
.dockerignore
run.sh
"""


def shell(words: list[str]) -> str:
    """Return a multi-line command, quoted for a POSIX shell."""
    lines = [words[0]]
    for word in words[1:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines)


def limits(wanted: Resources) -> list[str]:
    """Return the ``docker run`` options for a task's resources."""
    options = []
    if wanted.cpu:
        options.append(f"--cpus={rules.quantity(wanted.cpu).normalize():f}")
    if wanted.memory:
        options.append(f"--memory={amount(wanted.memory)}")
    if wanted.gpu:
        options.append(f"--gpus={wanted.gpu}")
    return options


def mount(*fields: str) -> str:
    """Return a ``--mount`` option. Docker parses it as CSV, so paths may contain commas."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return f"--mount={line.getvalue()}"


def mount_options(job: Job) -> list[str]:
    """Return the ``docker run`` options for volumes, secrets and /dev/shm."""
    options = []
    for volume in job.volumes:
        end = ["readonly"] if volume.read_only else []
        target = f"target={volume.path}"
        if volume.pvc:
            options.append(mount("type=volume", f"source={volume.pvc}", target, *end))
        elif volume.host:
            options.append(mount("type=bind", f"source={volume.host}", target, *end))
        elif volume.kind == "empty":
            # An anonymous volume is on disk; a tmpfs would be in memory.
            options.append(mount("type=volume", target))
    options += [
        mount("type=bind", f"source={source}", f"target={path}", "readonly")
        for path, source in directories(job).items()
    ]
    if job.shared_memory:
        options.append(f"--shm-size={amount(job.shared_memory)}")
    return options


def common_options(job: Job) -> list[str]:
    """Return the ``docker run`` options that all containers of the job share."""
    options = mount_options(job)
    options += [f"--env={name}={value}" for name, value in s3_settings(job).items()]
    # Without a value, Docker takes the variable from the shell that runs the script.
    options += [f"--env={name}" for name in job.secret_keys]
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        options.append(f"--env=GOOGLE_APPLICATION_CREDENTIALS={place}")
    for option, values in (("label", job.labels), ("annotation", job.annotations)):
        options += [f"--{option}={key}={value}" for key, value in values.items()]
    return options


def run_script(job: Job) -> str:
    """Return the shell script that builds the image, starts the tasks and waits for them."""
    names = {task: f"{job.name}-{task[0]}-{task[1]}" for task in tasks(job)}
    cluster = addresses(job, lambda role, index: names[role, index], lambda *_: job.port)
    heard = news(job, lambda role, i: names[role, i], lambda *_: job.port + 1)
    network = f"--network={job.name}"
    lines = ["#!/bin/sh", "set -eu", 'cd "$(dirname "$0")"']
    lines += [required(name) for name in job.secret_keys]
    lines.append(
        "grep -qxF secrets .dockerignore || "
        "{ echo '.dockerignore needs the line secrets to keep them out of the image' >&2; exit 1; }"
    )
    lines.append(f"docker build --tag {shlex.quote(job.image)} --file Dockerfile .")
    quoted = shlex.quote(job.name)
    lines.append(
        f"docker network inspect {quoted} >/dev/null 2>&1 || docker network create {quoted}"
    )
    for task in tasks(job):
        role, index = task
        env = {**start_variables(role, index, cluster, heard), **job.env_of(role)}
        words = ["docker", "run", "--detach", "--init", f"--name={names[task]}"]
        words += [f"--hostname={names[task]}", network]
        words += limits(job.roles[role].resources) + common_options(job)
        words += [f"--user={job.run_as_user}"] if job.run_as_user != RUN_AS_USER else []
        words += [f"--env={name}={value}" for name, value in env.items()]
        start = start_words(job, restarts=True, deadline=True)
        words += [f"--entrypoint={start[0]}", job.image, *start[1:], *program_words(job, role)]
        lines.append(shell(words))
    if job.tensorboard:
        lines.append(shell(board_words(job, network)))
    lines.append("status=0")
    for task in tasks(job):
        name = shlex.quote(names[task])
        lines.append(f'code="$(docker wait {name})"; {AS_STATUS}')
    if job.clean_up in {"running", "all"} and job.tensorboard:
        lines.append(f"docker stop {job.name}-tensorboard")
    if job.clean_up == "all":
        beside = [f"{job.name}-tensorboard"] if job.tensorboard else []
        lines.append(" ".join(["docker rm --force --volumes", *names.values(), *beside]))
        lines.append(f"docker network rm {quoted}")
    lines.append('exit "$status"')
    return "\n".join(lines) + "\n"


def board_words(job: Job, network: str) -> list[str]:
    """Return the command that runs TensorBoard."""
    assert job.tensorboard is not None
    board = job.tensorboard
    program = tensorboard_words(board)
    return [
        *["docker", "run", "--detach", f"--name={job.name}-tensorboard", network],
        f"--publish={board.port}:{board.port}",
        *limits(board.resources),
        *common_options(job),
        *[f"--entrypoint={program[0]}", board.image, *program[1:]],
    ]


class DockerTarget(ScriptTarget):
    """A Dockerfile, and a script with ``docker run``."""

    name = "docker"
    title = "Docker: a Dockerfile and the commands"
    cannot: ClassVar = ONE_HOST_CANNOT

    def render(self, job: Job) -> list[Document]:
        """Return the Dockerfile and the script."""
        return [
            Document("Dockerfile", dockerfile(job)),
            Document(".dockerignore", IGNORED, is_added=True),
            Document("run.sh", run_script(job)),
        ]

    def cannot_together(self, job: Job) -> Iterator[Problem]:
        """Yield a name that no container can have as its host name."""
        longest = max((f"{job.name}-{role}-{index}" for role, index in tasks(job)), key=len)
        if len(longest) > rules.MAX_LABEL:
            reason = f"the host name {longest!r} has {len(longest)} characters"
            yield Problem("name", f"{reason} (limit {rules.MAX_LABEL})")
