"""Docker Compose: a service for each task on one host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from gridflow.deploy.description import rules
from gridflow.deploy.description.description import RUN_AS_USER
from gridflow.deploy.pods import GCS_DIRECTORY, s3_settings
from gridflow.deploy.targets.base import Document, Target
from gridflow.deploy.targets.sidecars import SIDES, tensorboard_words
from gridflow.deploy.task_start import (
    addresses,
    news,
    program_words,
    start_variables,
    start_words,
    tasks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.parts import Resources
    from gridflow.deploy.kinds import ComposeService

#: Why targets with a single host can't select nodes.
ONE_HOST: Final = "everything runs on one host"
ONE_HOST_CANNOT: Final = {
    "namespace": "there are no namespaces; the project name keeps jobs apart",
    "resources.gpu_type": ONE_HOST,
    "resources.gpu_resource": "Docker supports only NVIDIA GPUs",
    "time_to_live": "nothing removes finished containers after a while",
    "gang": "all containers start at once anyway",
    "secrets.image_pull": "credentials for the registry come from 'docker login'",
    "node_selector": ONE_HOST,
    "tolerations": ONE_HOST,
    "affinity": ONE_HOST,
    "priority_class": "processes on one host have no priority classes",
    "service_account": "there are no service accounts",
}


def amount(text: str) -> str:
    """Return a quantity in bytes, as Docker expects it."""
    return str(int(rules.quantity(text)))


def doubled(text: str) -> str:
    """Double every ``$``, so that Compose doesn't expand it."""
    return text.replace("$", "$$")


def escape(value: Any, change: Callable[[str], str] = doubled) -> Any:
    """Change all strings in a tree, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [escape(item, change) for item in value]
    if isinstance(value, dict):
        return {key: escape(item, change) for key, item in value.items()}
    return value


def limits(wanted: Resources) -> dict[str, str]:
    """Return a service's limits on cores and memory."""
    found = {}
    if wanted.cpu:
        found["cpus"] = f"{rules.quantity(wanted.cpu).normalize():f}"
    if wanted.memory:
        found["memory"] = amount(wanted.memory)
    return found


def deploy(wanted: Resources) -> dict[str, Any]:
    """Return a service's resources."""
    amounts: dict[str, Any] = {"limits": found} if (found := limits(wanted)) else {}
    if wanted.gpu:
        device = {"driver": "nvidia", "count": wanted.gpu, "capabilities": ["gpu"]}
        amounts["reservations"] = {"devices": [device]}
    return {"resources": amounts} if amounts else {}


def volumes(job: Job) -> list[dict[str, Any]]:
    """Return a service's volumes for claims, host directories and scratch space."""
    found: list[dict[str, Any]] = []
    for volume in job.volumes:
        entry: dict[str, Any] = {"type": "volume", "target": volume.path}
        if volume.pvc:
            entry["source"] = volume.pvc
        elif volume.host:
            entry |= {"type": "bind", "source": volume.host}
        elif volume.kind != "empty":  # an anonymous volume, on disk
            continue
        if volume.read_only:
            entry["read_only"] = True
        found.append(entry)
    return found


def claims(job: Job) -> dict[str, dict[str, str]]:
    """Return the claims as a document's named volumes."""
    return {volume.pvc: {"name": volume.pvc} for volume in job.volumes if volume.pvc}


def mounts(job: Job) -> list[dict[str, Any]]:
    """Return all volumes of a service."""
    found = volumes(job)
    for path, source in directories(job).items():
        entry = {"type": "bind", "target": path, "source": source, "read_only": True}
        # A missing directory must be an error; Docker would create an empty one, owned by root.
        found.append({**entry, "bind": {"create_host_path": False}})
    return [dict(escape(entry)) for entry in found]


def directories(job: Job) -> dict[str, str]:
    """Return local directories with the keys of secrets and configs, by their mount paths.

    There is no API that stores secrets on these targets, so each key is a file, as in a pod.
    """
    found = {path: f"./secrets/{name}" for path, name in job.secrets.files.items()}
    for volume in job.volumes:
        if volume.secret:
            found[volume.path] = f"./secrets/{volume.secret}"
        if volume.config:
            found[volume.path] = f"./configs/{volume.config}"
    if job.credentials.gcs:
        found[GCS_DIRECTORY] = f"./secrets/{job.credentials.gcs.secret}"
    return found


def environment(job: Job, role: str, launch: dict[str, str]) -> dict[str, str | None]:
    """Return a task's variables; those with secrets must be set in the shell that runs Compose."""
    env: dict[str, str | None] = dict(escape({**launch, **job.env_of(role), **s3_settings(job)}))
    for name in job.secret_keys:
        env[name] = f"${{{name}:?set it to the value of the secret}}"
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        env["GOOGLE_APPLICATION_CREDENTIALS"] = escape(place)
    return env


def required(name: str) -> str:
    """Return a line of a shell script that fails if a secret's variable is empty."""
    # The message must not contain quotes: bash and sh parse them differently inside ${…}.
    return f': "${{{name}:?set it to the value of the secret}}"'


def render(job: Job) -> list[Document]:
    """Return the Compose file."""
    cluster = addresses(job, lambda role, index: f"{role}-{index}", lambda *_: job.port)
    heard = news(job, lambda role, i: f"{role}-{i}", lambda *_: job.port + 1)
    common: dict[str, Any] = {}
    if found := mounts(job):
        common["volumes"] = found
    if job.shared_memory:
        common["shm_size"] = amount(job.shared_memory)
    services: dict[str, ComposeService] = {}
    for role, index in tasks(job):
        service: dict[str, Any] = {
            "image": job.image,
            "hostname": f"{role}-{index}",
            "entrypoint": start_words(job, restarts=True, deadline=True),
            "command": escape(program_words(job, role)),
            "environment": environment(job, role, start_variables(role, index, cluster, heard)),
            "init": True,
            # gridflow launch restarts by the job's policy; Compose can't tell failures apart.
            "restart": "no",
            **common,
        }
        if job.run_as_user != RUN_AS_USER:
            service["user"] = str(job.run_as_user)
        if resources := deploy(job.roles[role].resources):
            service["deploy"] = resources
        if job.labels:
            service["labels"] = escape(dict(job.labels))
        if job.annotations:
            service["annotations"] = escape(dict(job.annotations))
        services[f"{role}-{index}"] = cast("ComposeService", service)
    if job.tensorboard:
        services["tensorboard"] = board(job, common)
    whole: dict[str, Any] = {"name": job.name, "services": services}
    if named := claims(job):
        whole["volumes"] = named
    return [Document("compose.yaml", whole)]


def board(job: Job, common: dict[str, Any]) -> ComposeService:
    """Return TensorBoard's service."""
    assert job.tensorboard is not None
    port = job.tensorboard.port
    service: dict[str, Any] = {
        "image": job.tensorboard.image,
        "entrypoint": [],
        "command": escape(tensorboard_words(job.tensorboard)),
        "ports": [f"{port}:{port}"],
        **{key: value for key, value in common.items() if key == "volumes"},
    }
    settings: dict[str, str | None] = dict(escape(s3_settings(job)))
    for name in job.credentials.keys:
        settings[name] = f"${{{name}:?set it to the value of the secret}}"
    if job.credentials.gcs:
        place = f"{GCS_DIRECTORY}/{job.credentials.gcs.key}"
        settings["GOOGLE_APPLICATION_CREDENTIALS"] = escape(place)
    if settings:
        service["environment"] = settings
    if resources := deploy(job.tensorboard.resources):
        service["deploy"] = resources
    return cast("ComposeService", service)


TARGET: Final = Target(
    name="compose",
    title="Docker Compose: each task is a service on one host",
    form="compose",
    render=render,
    cannot={
        **ONE_HOST_CANNOT,
        "clean_up=running": "Compose doesn't stop containers by itself; use 'docker compose down'",
        "clean_up=all": "Compose doesn't remove containers by itself; use 'docker compose down'",
    },
    leaves=SIDES,
    needs=("image", "command"),
)
