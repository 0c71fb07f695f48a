"""Plain Kubernetes: an Indexed Job for each role, and one headless Service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.exits import Exit
from gridflow.deploy.description.problems import Problem
from gridflow.deploy.pods import began_env, field_env, metadata, object_document, service, task_pod
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.sidecars import (
    join_group,
    kueue_labels,
    pod_group,
    tensorboard,
)
from gridflow.deploy.task_start import (
    PERMANENT,
    UNSTARTED,
    addresses,
    meeting,
    news,
    start_words,
)

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

CONTAINER: Final = "tensorflow"
PORT_NAME: Final = "tensorflow"
#: The number of earlier failures of a Job's index, which the Job controller records on each pod
#: (kubernetes/kubernetes, pkg/controller/job/indexed_job_utils.go, addIndexFailureCountAnnotation).
FAILED_BEFORE: Final = field_env(
    "GRIDFLOW_FAILURES", "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
)
_DISRUPTED: Final = {"type": "DisruptionTarget", "status": "True"}


def failure_policy(job: Job, container: str, *final: int) -> dict[str, Any]:
    """Return the ``podFailurePolicy`` that distinguishes permanent from retryable failures.

    ``final`` contains exit codes that are permanent under every policy.
    """
    if job.restart_policy == "never":
        return {"rules": [{"action": "FailJob", "onPodConditions": [_DISRUPTED]}]}
    rules: list[dict[str, Any]] = [{"action": "Ignore", "onPodConditions": [_DISRUPTED]}]
    if final := PERMANENT if job.restart_policy == "exit-code" else final:
        values = [int(code) for code in final]
        codes = {"containerName": container, "operator": "In", "values": values}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return {"rules": rules}


def limits(job: Job) -> dict[str, int]:
    """Return the fields of a ``batch/v1`` Job's spec for deadline and time to live."""
    fields = {}
    if job.deadline is not None:
        fields["activeDeadlineSeconds"] = job.deadline + UNSTARTED
    if job.time_to_live is not None:
        fields["ttlSecondsAfterFinished"] = job.time_to_live
    elif job.clean_up == "all":
        fields["ttlSecondsAfterFinished"] = 0
    return fields


class IndexedJobsTarget(KubernetesTarget):
    """An Indexed Job for each role."""

    name = "kubernetes"
    title = "Kubernetes 1.29 or later: Indexed Jobs and a headless Service"
    restarts_pods = True
    cannot: ClassVar = {
        "clean_up=none": "the Job controller stops the pods of a failed Job",
    }

    def render(self, job: Job) -> list[Document]:
        """Return the Service, the Jobs and their sidecars."""

        def host(role: str, index: int) -> str:
            return f"{job.name}-{role}-{index}.{job.name}.{job.namespace}.svc"

        cluster = addresses(job, host, lambda *_: job.port)
        ports = {"tensorflow": job.port}
        # The tasks of one Job end with it; those of several Jobs must hear of each other.
        several = len(job.roles) > 1
        heard = news(job, host, lambda *_: job.port + 1) if several else meeting(job, host)
        # A task that was stopped because another one failed permanently isn't restarted.
        final = [Exit.GIVEN_UP] if several else []
        # Nor is one that has exceeded the deadline.
        final += [Exit.OVERDUE] if job.deadline is not None else []
        if heard:
            ports["finish"] = job.port + 1
        documents = [service(job, job.name, ports, None, headless=True)]
        documents += pod_group(job)
        for name, role in job.role_items():
            template = task_pod(
                job,
                name,
                words=start_words(job, pod_restarts=bool(heard), deadline=True),
                container=CONTAINER,
                port_name=PORT_NAME,
                cluster=cluster,
                news=heard,
                subdomain=job.name,
                extra_env=(*((FAILED_BEFORE,) if several else ()), *began_env(job)),
            )
            join_group(job, template)
            spec: dict[str, Any] = {
                "completions": role.replicas,
                "parallelism": role.replicas,
                "completionMode": "Indexed",
                "backoffLimitPerIndex": 0 if job.restart_policy == "never" else job.restart_limit,
                "maxFailedIndexes": 0,
                **limits(job),
                "podFailurePolicy": failure_policy(job, CONTAINER, *final),
                "template": template,
            }
            about = metadata(job, f"{job.name}-{name}", name)
            if not several:
                about["labels"] = {**about["labels"], **kueue_labels(job)}
            documents.append(object_document("batch/v1", "Job", about, spec=spec))
        return documents + tensorboard(job)

    def cannot_together(self, job: Job) -> list[Problem]:
        """Reject Kueue for several roles, because it would admit their Jobs one by one."""
        roles = [name for name, _ in job.role_items()]
        if len(roles) > 1 and kueue_labels(job):
            reason = (
                f"Kueue admits the Jobs of {', '.join(roles)} one by one, so an incomplete group "
                "could hold its quota forever; use the target jobset, tfjob or trainjob, which "
                "are admitted as a whole, or gang.scheduler: volcano"
            )
            return [Problem("gang.queue", reason)]
        return []
