"""JobSet: all roles in one object that restarts as a whole, as TensorFlow groups must."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.exits import Exit
from gridflow.deploy.pods import began_env, field_env, metadata, object_document, task_pod
from gridflow.deploy.targets.kubernetes import CONTAINER, PORT_NAME, failure_policy
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.sidecars import (
    join_group,
    kueue_labels,
    pod_group,
    tensorboard,
)
from gridflow.deploy.task_start import UNSTARTED, addresses, meeting, start_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

#: The variables that tell ``gridflow launch`` its role in a JobSet.
JOBSET_ENV: Final = (
    field_env("JOBSET_NAME", "metadata.labels['jobset.sigs.k8s.io/jobset-name']"),
    field_env("REPLICATED_JOB_NAME", "metadata.labels['jobset.sigs.k8s.io/replicatedjob-name']"),
)


def host(job: Job, part: str, index: int) -> str:
    """Return the DNS name of a pod in a replicated job that has a single Job."""
    return f"{job.name}-{part}-0-{index}.{job.name}.{job.namespace}.svc"


def set_policies(job: Job, main: str) -> dict[str, Any]:
    """Return the set's success and failure policies."""
    failure: dict[str, Any] = {"maxRestarts": 0}
    if job.restart_policy != "never":
        failure["maxRestarts"] = job.restart_limit
    final = ["PodFailurePolicy"] if job.restart_policy == "exit-code" else []
    if job.deadline is not None:
        final = ["PodFailurePolicy", "DeadlineExceeded"]
    if final and failure["maxRestarts"]:
        rule = {"name": "permanent", "action": "FailJobSet"}
        failure["rules"] = [{**rule, "onJobFailureReasons": final}]
    return {
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [main]},
        "failurePolicy": failure,
    }


def inner_job(job: Job, role: str, template: Any, container: str) -> dict[str, Any]:
    """Return the spec of a role's Job inside a set; it fails as soon as a pod fails."""
    spec: dict[str, Any] = {
        "completions": job.roles[role].replicas,
        "parallelism": job.roles[role].replicas,
        "completionMode": "Indexed",
        "backoffLimit": 0,
    }
    if job.deadline is not None:
        spec["activeDeadlineSeconds"] = job.deadline + UNSTARTED
    # A restart creates new Jobs with a fresh deadline, so the launcher enforces the job's.
    final = () if job.deadline is None else (int(Exit.OVERDUE),)
    spec["podFailurePolicy"] = failure_policy(job, container, *final)
    spec["template"] = template
    return spec


def replicated_jobs(
    job: Job, container: str, port_name: str, part: Callable[[str], str] = str
) -> dict[str, dict[str, Any]]:
    """Return the replicated jobs of a set, by role.

    `container`, `port_name`: The names of the tasks' container and of its port.
    `part`: Returns the name of a role's replicated job. Default: the role's.
    """

    def place(role: str, index: int) -> str:
        return host(job, part(role), index)

    cluster, heard = addresses(job, place, lambda *_: job.port), meeting(job, place)
    found = {}
    for role, _ in job.role_items():
        template = task_pod(
            job,
            role,
            words=start_words(job, deadline=True),
            container=container,
            port_name=port_name,
            cluster=cluster,
            news=heard,
            extra_env=(*JOBSET_ENV, *began_env(job)),
        )
        join_group(job, template)
        whole = {"spec": inner_job(job, role, template, container)}
        found[role] = {"name": part(role), "replicas": 1, "template": whole}
    return found


class JobSetTarget(KubernetesTarget):
    """A JobSet."""

    name = "jobset"
    title = "JobSet v1alpha2: one object, restarted as a whole"
    restarts_pods = True
    cannot: ClassVar = {"clean_up=none": "JobSet stops all running pods when the set has finished"}

    def render(self, job: Job) -> list[Document]:
        """Return the JobSet and its sidecars."""
        spec: dict[str, Any] = {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": job.name,
                "publishNotReadyAddresses": True,
            },
            **set_policies(job, job.main_role),
            "replicatedJobs": list(replicated_jobs(job, CONTAINER, PORT_NAME).values()),
        }
        if job.time_to_live is not None:
            spec["ttlSecondsAfterFinished"] = job.time_to_live
        elif job.clean_up == "all":
            spec["ttlSecondsAfterFinished"] = 0
        about = metadata(job, job.name)
        about["labels"] = {**about["labels"], **kueue_labels(job)}
        return [
            *pod_group(job),
            object_document("jobset.x-k8s.io/v1alpha2", "JobSet", about, spec=spec),
            *tensorboard(job),
        ]
