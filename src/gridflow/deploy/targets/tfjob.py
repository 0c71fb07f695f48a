"""Kubeflow's TFJob: its operator hands over TF_CONFIG.

Restarts happen inside the pods. The operator's own (kubeflow/trainer v1.9,
``pkg/controller.v1/common/job.go``) add the restarts of all pods up against one ``backoffLimit``,
delete every pod with its output once that is reached, whatever ``cleanPodPolicy`` says, and know no
limit for ``ExitCode``, where a failed pod is deleted and made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._spec.roles import CHIEF, EVALUATOR, PS, WORKER
from gridflow.deploy.pods import began_env, env_list, metadata, task_pod
from gridflow.deploy.targets.base import Document, Target, object_document
from gridflow.deploy.targets.sidecars import SIDES, kueue_labels, scheduler, tensorboard
from gridflow.deploy.task_start import UNSTARTED, meeting, start_words

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.kinds import Object

#: The operator writes TF_CONFIG only into a container of this name, and reads only this port.
CONTAINER: Final = "tensorflow"
PORT_NAME: Final = "tfjob-port"
ROLE_NAMES: Final = {CHIEF: "Chief", WORKER: "Worker", PS: "PS", EVALUATOR: "Evaluator"}
#: pkg/apis/kubeflow.org/v1/tensorflow_types.go has the types of replicas that there are.
NO_DATA_SERVICE: Final = (
    "the operator knows no such replicas; use jobset, or run the data service as a job of its own "
    "(docs/data_service.md)"
)


def run_policy(job: Job) -> dict[str, Any]:
    """Return the ``runPolicy`` of a job."""
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


def render(job: Job) -> list[Document]:
    """Return the TFJob and what stands beside it."""
    # The operator's own names: pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec.
    heard = meeting(job, lambda role, i: f"{job.name}-{role}-{i}.{job.namespace}.svc")
    replicas = {}
    for name, role in job.role_items():
        # With one task in all, the operator sets no TF_CONFIG.
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
            # The operator looks at the job's deadline only when something else happens to it.
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
    whole: Object = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": top,
        "spec": spec,
    }
    return [object_document(whole), *tensorboard(job)]


TARGET: Final = Target(
    name="tfjob",
    title="Kubeflow training operator: TFJob kubeflow.org/v1",
    form="kubernetes",
    render=render,
    cannot={"roles.dispatcher": NO_DATA_SERVICE, "roles.data": NO_DATA_SERVICE},
    leaves=SIDES,
    needs=("image", "command"),
)
