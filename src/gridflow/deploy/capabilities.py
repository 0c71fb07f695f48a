"""The features of the job description, and which of them a job uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gridflow.deploy.description.description import RUN_AS_USER, SIDES, START_TIMEOUT
from gridflow.deploy.description.parts import GPU_RESOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gridflow.deploy.description.description import Job

#: Every feature with a short description, in the order of the job description.
FEATURES: Final = {
    "namespace": "a namespace",
    "image": "the container image",
    "command": "the program and its arguments",
    "env": "environment variables",
    "roles.chief": "a chief",
    "roles.worker": "workers",
    "roles.ps": "parameter servers",
    "roles.evaluator": "an evaluator",
    "roles.dispatcher": "the dispatcher of a data service",
    "roles.data": "data workers",
    "roles.command": "a role's own program",
    "roles.env": "a role's own environment variables",
    "resources.cpu": "CPU cores",
    "resources.memory": "memory",
    "resources.gpu": "GPUs",
    "resources.gpu_type": "the GPU model",
    "resources.gpu_resource": "GPUs from other vendors than NVIDIA",
    "port": "TensorFlow's port",
    "classic_flags": "--job_name --task_index --ps_hosts --worker_hosts",
    "restart_policy=on-failure": "restart after any failure",
    "restart_policy=exit-code": "restart only after exit codes of 128 and above",
    "restart_policy=never": "no restart",
    "restart_limit": "the maximum number of restarts",
    "start_timeout": "seconds that tasks wait for their peers",
    "deadline": "maximum run time of the job, in seconds",
    "time_to_live": "seconds to keep a finished job",
    "clean_up=none": "keep all tasks at the end",
    "clean_up=running": "stop running tasks at the end",
    "clean_up=all": "remove all tasks at the end",
    "gang.scheduler=kueue": "admission as a whole by Kueue",
    "gang.scheduler=volcano": "gang scheduling by Volcano",
    "gang.queue": "the queue",
    "gang.minimum": "the minimum number of tasks to start with",
    "volumes.pvc": "persistent volume claims",
    "volumes.empty": "scratch directories",
    "volumes.host": "host directories",
    "volumes.secret": "secrets as directories",
    "volumes.config": "configuration as directories",
    "shared_memory": "the size of /dev/shm",
    "secrets.env": "secrets as environment variables",
    "secrets.files": "secrets as files",
    "secrets.image_pull": "credentials for the image registry",
    "credentials.gcs": "a Google service account",
    "credentials.s3": "keys for S3",
    "node_selector": "which nodes to use",
    "tolerations": "tolerated taints",
    "affinity": "affinity to nodes and other pods",
    "priority_class": "the pods' priority",
    "service_account": "the pods' service account",
    "run_as_user": "the containers' user",
    "labels": "labels",
    "annotations": "annotations",
    "tensorboard": "TensorBoard for the job",
    "serve.models": "models to serve",
    "serve.versions": "selected versions and labels of a model",
    "serve.batching": "request batching",
    "serve.monitoring": "Prometheus metrics",
    "serve.replicas": "the number of servers",
    **{name: side.title for name, side in SIDES.items() if side.title},
    "overrides": "changes merged into the documents",
}


@dataclass(frozen=True)
class Use:
    """A feature in use, and its path in the description."""

    feature: str
    path: str


def uses(job: Job) -> Iterator[Use]:
    """Yield the features that a job uses, in the order of the description."""
    return (Use(feature, path) for feature, path in _found(job))


def _found(job: Job) -> Iterator[tuple[str, str]]:
    if job.namespace != "default":
        yield "namespace", "namespace"
    for name in ("image", "command", "env"):
        if getattr(job, name):
            yield name, name
    yield from _roles(job)
    yield "port", "port"
    if job.classic_flags:
        yield "classic_flags", "classic_flags"
    yield f"restart_policy={job.restart_policy}", "restart_policy"
    if job.restart_policy != "never":
        yield "restart_limit", "restart_limit"
    if job.start_timeout != START_TIMEOUT:
        yield "start_timeout", "start_timeout"
    for name in ("deadline", "time_to_live"):
        if getattr(job, name) is not None:
            yield name, name
    if job.clean_up:
        yield f"clean_up={job.clean_up}", "clean_up"
    yield from _cluster(job)
    if job.tensorboard:
        yield "tensorboard", "tensorboard"
    yield from _sides(job)


def _roles(job: Job) -> Iterator[tuple[str, str]]:
    for name, role in job.role_items():
        path = f"roles.{name}"
        yield f"roles.{name}", path
        if role.command is not None or role.args is not None:
            yield "roles.command", f"{path}.{'args' if role.command is None else 'command'}"
        if role.env:
            yield "roles.env", f"{path}.env"
        for field in ("cpu", "memory", "gpu", "gpu_type"):
            if getattr(role.resources, field):
                yield f"resources.{field}", f"{path}.resources.{field}"
        if role.resources.gpu_resource != GPU_RESOURCE:
            yield "resources.gpu_resource", f"{path}.resources.gpu_resource"


def _cluster(job: Job) -> Iterator[tuple[str, str]]:
    if job.gang:
        if job.gang.scheduler:
            yield f"gang.scheduler={job.gang.scheduler}", "gang.scheduler"
        for name in ("queue", "minimum"):
            if getattr(job.gang, name):
                yield f"gang.{name}", f"gang.{name}"
    for index, volume in enumerate(job.volumes):
        yield f"volumes.{volume.kind}", f"volumes[{index}].{volume.kind}"
    if job.shared_memory:
        yield "shared_memory", "shared_memory"
    for group, names in (
        ("secrets", ("env", "files", "image_pull")),
        ("credentials", ("gcs", "s3")),
    ):
        for name in names:
            if getattr(getattr(job, group), name):
                yield f"{group}.{name}", f"{group}.{name}"
    yield from _pods(job)


def _pods(job: Job) -> Iterator[tuple[str, str]]:
    placement = ("node_selector", "tolerations", "affinity", "priority_class", "service_account")
    for name in placement:
        if getattr(job, name):
            yield name, name
    if job.run_as_user != RUN_AS_USER:
        yield "run_as_user", "run_as_user"
    for name in ("labels", "annotations"):
        if getattr(job, name):
            yield name, name


def _sides(job: Job) -> Iterator[tuple[str, str]]:
    if job.serve:
        yield "serve.models", "serve.models"
        for index, model in enumerate(job.serve.models):
            if model.versions or model.labels:
                yield "serve.versions", f"serve.models[{index}]"
        for name in ("batching", "monitoring"):
            if getattr(job.serve, name):
                yield f"serve.{name}", f"serve.{name}"
        yield "serve.replicas", "serve.replicas"
    for name, side in SIDES.items():
        if side.title and getattr(job, name):
            yield name, name
    if job.overrides:
        yield "overrides", "overrides"
