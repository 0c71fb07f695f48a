"""Volcano's own Job: gang scheduling and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gridflow._spec.exits import Exit
from gridflow.deploy.pods import began_env, metadata, object_document, task_pod
from gridflow.deploy.targets.kubernetes import CONTAINER, PORT_NAME
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.sidecars import tensorboard
from gridflow.deploy.task_start import RETRYABLE, UNSTARTED, addresses, meeting, start_words

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document


def policies(job: Job) -> list[dict[str, Any]]:
    """Return the actions on the whole job when a pod fails or is evicted."""
    again = "AbortJob" if job.restart_policy == "never" else "RestartJob"
    rules: list[dict[str, Any]] = [{"event": "PodEvicted", "action": again}]
    if job.deadline is not None:
        rules.append({"exitCode": int(Exit.OVERDUE), "action": "AbortJob"})
    if job.restart_policy == "exit-code":
        # Volcano matches single codes, so `gridflow launch` exits with one for retryable failures.
        rules.append({"exitCode": RETRYABLE, "action": "RestartJob"})
        again = "AbortJob"
    return [*rules, {"event": "PodFailed", "action": again}]


class VolcanoTarget(KubernetesTarget):
    """A Job of Volcano's."""

    name = "volcano"
    title = "Volcano batch.volcano.sh/v1alpha1: gang scheduling with queues"
    restarts_pods = True
    cannot: ClassVar = {
        "clean_up=none": "Volcano stops running pods when the job is complete",
        "gang.scheduler=kueue": "Volcano schedules its own jobs",
    }

    def render(self, job: Job) -> list[Document]:
        """Return the Volcano Job and its sidecars."""

        def host(role: str, index: int) -> str:
            return f"{job.name}-{role}-{index}.{job.name}.{job.namespace}.svc"

        cluster = addresses(job, host, lambda *_: job.port)
        heard = meeting(job, host)
        once = job.restart_policy == "exit-code"
        words = start_words(job, deadline=True, one_retryable_code=once)
        tasks = []
        for name, role in job.role_items():
            template = task_pod(
                job,
                name,
                words=words,
                container=CONTAINER,
                port_name=PORT_NAME,
                cluster=cluster,
                news=heard,
                extra_env=began_env(job),
            )
            if job.deadline is not None:
                template["spec"]["activeDeadlineSeconds"] = job.deadline + UNSTARTED
            task: dict[str, Any] = {"name": name, "replicas": role.replicas}
            if name == job.main_role:
                task["policies"] = [{"event": "TaskCompleted", "action": "CompleteJob"}]
            tasks.append({**task, "template": template})
        gang = job.gang
        spec: dict[str, Any] = {
            "schedulerName": "volcano",
            "minAvailable": (gang.minimum if gang else None) or job.tasks,
        }
        if gang and gang.queue:
            spec["queue"] = gang.queue
        if job.priority_class:
            spec["priorityClassName"] = job.priority_class
        # Volcano counts a restart before it compares, and its webhook turns 0 into 3
        # (volcano-sh/volcano, pkg/controllers/job/state/{running,restarting}.go, mutate_job.go).
        spec["maxRetry"] = 1 + (0 if job.restart_policy == "never" else job.restart_limit)
        if job.time_to_live is not None:
            spec["ttlSecondsAfterFinished"] = job.time_to_live
        elif job.clean_up == "all":
            spec["ttlSecondsAfterFinished"] = 0
        spec |= {
            "plugins": {"svc": ["--publish-not-ready-addresses=true"], "env": []},
            "policies": policies(job),
            "tasks": tasks,
        }
        whole = object_document(
            "batch.volcano.sh/v1alpha1", "Job", metadata(job, job.name), spec=spec
        )
        return [whole, *tensorboard(job)]
