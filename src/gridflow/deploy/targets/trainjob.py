"""Kubeflow Trainer v2: a TrainJob with its own TensorFlow runtime, which Trainer doesn't include.

Trainer's plain runtime gives every node the same environment, so ``gridflow launch`` builds
TF_CONFIG in the container, from JobSet's pod names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow.deploy.pods import metadata, object_document
from gridflow.deploy.targets.jobset import replicated_jobs, set_policies
from gridflow.deploy.targets.kubernetes import PORT_NAME
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.sidecars import (
    kueue_labels,
    scheduler,
    tensorboard,
)
from gridflow.deploy.task_start import UNSTARTED

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

#: The replicated job and container that a TrainJob's ``trainer`` section configures.
NODE: Final = "node"
STEP: Final = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
QUEUE: Final = "scheduling.volcano.sh/queue-name"
#: In kubeflow/trainer, pkg/controller/trainjob_controller.go, each reconciliation first forgets
#: that the job has failed, and recreates its JobSet if that is gone (issue 3779; up to 2.1 also
#: after success: issue 2981). A TrainJob has no time to live (issue 4052).
NO_TIME_TO_LIVE: Final = (
    "Trainer recreates a failed job's JobSet after it is removed, and trains forever; "
    "'gridflow cancel' removes the job, and the target jobset can do it by itself"
)


def part(job: Job, role: str) -> str:
    """Return the name of a role's replicated job: ``node`` for the TrainJob's own."""
    return NODE if role == job.main_role else role


def runtime(job: Job) -> Document:
    """Return the TrainingRuntime of a job."""
    # Trainer creates the pod group, but leaves the choice of the scheduler to the runtime
    # (kubeflow/trainer, pkg/runtime/framework/plugins/volcano).
    parts = replicated_jobs(job, NODE, PORT_NAME, lambda role: part(job, role))
    main = parts[job.main_role]
    main["template"] = {"metadata": {"labels": dict(STEP)}, **main["template"]}
    template_of_set: dict[str, Any] = {
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **set_policies(job, NODE),
            "replicatedJobs": list(parts.values()),
        }
    }
    spec: dict[str, Any] = {"mlPolicy": {"numNodes": job.roles[job.main_role].replicas}}
    if job.gang and scheduler(job) == "volcano":
        spec["podGroupPolicy"] = {"volcano": {}}
        if job.gang.queue:
            template_of_set["metadata"] = {"annotations": {QUEUE: job.gang.queue}}
    spec["template"] = template_of_set
    top = metadata(job, f"{job.name}-tensorflow")
    top["labels"] = {**top["labels"], "trainer.kubeflow.org/framework": "tensorflow"}
    return object_document("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", top, spec=spec)


class TrainJobTarget(KubernetesTarget):
    """A TrainJob and its runtime."""

    name = "trainjob"
    title = "Kubeflow Trainer v2: TrainJob with its own TensorFlow runtime"
    restarts_pods = True
    cannot: ClassVar = {
        "clean_up=none": "the underlying JobSet stops running pods when the job has finished",
        "clean_up=all": NO_TIME_TO_LIVE,
        "time_to_live": NO_TIME_TO_LIVE,
        "gang.minimum": "Trainer's pod groups start with all tasks",
    }

    def render(self, job: Job) -> list[Document]:
        """Return the runtime, the TrainJob and their sidecars."""
        spec: dict[str, Any] = {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": f"{job.name}-tensorflow",
            },
            "trainer": {"image": job.image, "numNodes": job.roles[job.main_role].replicas},
        }
        if job.deadline is not None:
            # Trainer's deadline removes the JobSet with its pods and their output.
            spec["activeDeadlineSeconds"] = job.deadline + UNSTARTED
        top = metadata(job, job.name)
        top["labels"] = {**top["labels"], **kueue_labels(job)}
        return [
            runtime(job),
            object_document("trainer.kubeflow.org/v1alpha1", "TrainJob", top, spec=spec),
            *tensorboard(job),
        ]
