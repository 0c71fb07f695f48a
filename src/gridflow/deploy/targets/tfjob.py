"""Kubeflow's TFJob, whose operator sets TF_CONFIG.

Restarts happen inside the pods. The operator's restarts (kubeflow/trainer v1.9,
``pkg/controller.v1/common/job.go``) aren't used: it counts the restarts of all pods against one
``backoffLimit``, and deletes every pod with its output once that is reached, whatever
``cleanPodPolicy`` says. With ``ExitCode``, it deletes and recreates failed pods without a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.cluster import CHIEF, EVALUATOR, PS, WORKER
from gridflow.deploy.pods import began_env, env_list, metadata, object_document, task_pod
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.sidecars import kueue_labels, scheduler, tensorboard
from gridflow.deploy.task_start import UNSTARTED, meeting, start_words

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

#: The operator writes TF_CONFIG only into a container of this name, and reads only this port.
CONTAINER: Final = "tensorflow"
PORT_NAME: Final = "tfjob-port"
ROLE_NAMES: Final = {CHIEF: "Chief", WORKER: "Worker", PS: "PS", EVALUATOR: "Evaluator"}
#: The supported replica types are in pkg/apis/kubeflow.org/v1/tensorflow_types.go.
NO_DATA_SERVICE: Final = (
    "the operator has no such replica type; use jobset, or run the data service as a separate job "
    "(docs/data_service.md)"
)


def run_policy(job: Job) -> dict[str, Any]:
    """Return a job's ``runPolicy``."""
    policy: dict[str, Any] = {"cleanPodPolicy": (job.clean_up or "running").capitalize()}
    if job.deadline is not None:
        policy["activeDeadlineSeconds"] = job.deadline + UNSTARTED
    if job.time_to_live is not None:
        policy["ttlSecondsAfterFinished"] = job.time_to_live
    if job.gang and scheduler(job) == "volcano":
        gang: dict[str, Any] = {"minAvailable": job.gang.minimum or job.tasks}
        if job.gang.queue:
            gang["queue"] = job.gang.queue
        if job.priority_class:
            gang["priorityClass"] = job.priority_class
        policy["schedulingPolicy"] = gang
    return policy


class TFJobTarget(KubernetesTarget):
    """A TFJob."""

    name = "tfjob"
    title = "Kubeflow training operator: TFJob kubeflow.org/v1"
    restarts_pods = True
    cannot: ClassVar = {"roles.dispatcher": NO_DATA_SERVICE, "roles.data": NO_DATA_SERVICE}

    def render(self, job: Job) -> list[Document]:
        """Return the TFJob and its sidecars."""
        # The operator's names: pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec.
        heard = meeting(job, lambda role, i: f"{job.name}-{role}-{i}.{job.namespace}.svc")
        replicas = {}
        for name, role in job.role_items():
            # With a single task, the operator doesn't set TF_CONFIG.
            alone = {"GRIDFLOW_ROLE": name, "GRIDFLOW_INDEX": "0"} if job.tasks == 1 else {}
            template = task_pod(
                job,
                name,
                words=start_words(job, restarts=True, deadline=True),
                container=CONTAINER,
                port_name=PORT_NAME,
                cluster=None,
                news=heard,
                restart=None,
                extra_env=(*env_list(alone), *began_env(job)),
            )
            if job.deadline is not None:
                # The operator only checks the job's deadline when something else happens to it.
                template["spec"]["activeDeadlineSeconds"] = job.deadline + UNSTARTED
            replicas[ROLE_NAMES[name]] = {
                "replicas": role.replicas,
                "restartPolicy": "Never",
                "template": template,
            }
        spec: dict[str, Any] = {"runPolicy": run_policy(job), "tfReplicaSpecs": replicas}
        if CHIEF not in job.roles:
            spec = {"successPolicy": "AllWorkers", **spec}
        top = metadata(job, job.name)
        top["labels"] = {**top["labels"], **kueue_labels(job)}
        return [object_document("kubeflow.org/v1", "TFJob", top, spec=spec), *tensorboard(job)]
