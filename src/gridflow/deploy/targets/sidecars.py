"""Additional objects for training on Kubernetes: TensorBoard and Volcano's pod group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description.problems import Problem, refuse
from gridflow.deploy.description.services import BUCKETS, TENSORBOARD_IMAGE
from gridflow.deploy.pods import (
    KUEUE_QUEUE,
    box_security,
    credential_env,
    metadata,
    names,
    object_document,
    placement,
    pod_security,
    resources,
    selector,
    service,
    volumes,
)
from gridflow.deploy.task_start import kubernetes_text

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.services import TensorBoardSection
    from gridflow.deploy.targets.base import Document

VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"


def scheduler(job: Job) -> str | None:
    """Return the gang scheduler for targets that don't have their own."""
    if not job.gang:
        return None
    if job.gang.scheduler:
        return job.gang.scheduler
    return "kueue" if job.gang.queue and not job.gang.minimum else "volcano"


def kueue_labels(job: Job) -> dict[str, str]:
    """Return the label with which Kueue admits an object, if the job uses Kueue."""
    if job.gang and job.gang.queue and scheduler(job) == "kueue":
        return {KUEUE_QUEUE: job.gang.queue}
    return {}


def pod_group(job: Job) -> list[Document]:
    """Return Volcano's pod group, if the job uses Volcano."""
    if not job.gang or scheduler(job) != "volcano":
        return []
    spec: dict[str, Any] = {"minMember": job.gang.minimum or job.tasks}
    if job.gang.queue:
        spec["queue"] = job.gang.queue
    if job.priority_class:
        spec["priorityClassName"] = job.priority_class
    group = object_document(
        "scheduling.volcano.sh/v1beta1", "PodGroup", metadata(job, job.name), spec=spec
    )
    return [group]


def join_group(job: Job, template: Any) -> None:
    """Add a pod template to the job's pod group, if there is one."""
    if scheduler(job) == "volcano":
        template["spec"]["schedulerName"] = "volcano"
        template["metadata"].setdefault("annotations", {})[VOLCANO_GROUP] = job.name


def tensorboard_words(board: TensorBoardSection) -> list[str]:
    """Return the command that starts TensorBoard in its container.

    Raises `JobError`: For logs in S3 with the default image, which can't read them.
    """
    if board.log_dir.startswith("s3://") and board.image == TENSORBOARD_IMAGE:
        reason = (
            f"the image {board.image} can't read {board.log_dir!r}: TensorFlow opens only files "
            "and gs://. Write the logs to a volume or to gs://, or set tensorboard.image to an "
            "image that reads S3 (tensorboard and boto3, without TensorFlow)."
        )
        refuse([Problem("tensorboard.log_dir", reason)])
    words = ["tensorboard", f"--logdir={board.log_dir}", f"--port={board.port}", "--bind_all"]
    return words if board.log_dir.startswith(BUCKETS) else [*words, "--load_fast=false"]


def tensorboard(job: Job) -> list[Document]:
    """Return TensorBoard's Deployment and Service, if the job has one."""
    board = job.tensorboard
    if not board:
        return []
    name = f"{job.name}-tensorboard"
    sources, mounts = volumes(job, looks_on=True)
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 10}
    box: dict[str, Any] = {
        "name": "tensorboard",
        "image": board.image,
        "command": [kubernetes_text(word) for word in tensorboard_words(board)],
        "ports": [{"name": "http", "containerPort": board.port}],
        "readinessProbe": probe,
    }
    if env := credential_env(job):
        box["env"] = env
    if amounts := resources(board.resources):
        box["resources"] = amounts
    box["volumeMounts"] = mounts
    box |= box_security(job.run_as_user, read_only=True)
    spec: dict[str, Any] = placement(job, board.resources) | pod_security(job.run_as_user)
    spec |= {"containers": [box], "volumes": sources}
    about: dict[str, Any] = {"labels": {**job.labels, **names(job, "tensorboard")}}
    if job.annotations:
        about["annotations"] = dict(job.annotations)
    deployment = object_document(
        "apps/v1",
        "Deployment",
        metadata(job, name, "tensorboard"),
        spec={
            "replicas": 1,
            "selector": {"matchLabels": selector(job, "tensorboard")},
            "template": {"metadata": about, "spec": spec},
        },
    )
    front = service(job, name, {"http": board.port}, "tensorboard")
    return [deployment, front]
