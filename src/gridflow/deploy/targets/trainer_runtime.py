"""A cluster-wide TensorFlow runtime for Kubeflow Trainer v2, which doesn't include one.

Any TrainJob can refer to it, and brings image, arguments and the number of nodes. Trainer's plain
policy doesn't tell pods the number of nodes (kubeflow/trainer,
pkg/runtime/framework/plugins/plainml). Its torch policy does, in ``PET_NNODES`` (plugins/torch),
and changes nothing else in a container without torchtune. From that and JobSet's names,
`gridflow launch` builds TF_CONFIG.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow._spec.cluster import DEFAULT_PORT
from gridflow.deploy.description.parts import Credentials, Secrets
from gridflow.deploy.pods import env_list, metadata, object_document, task_pod
from gridflow.deploy.targets.base import sides
from gridflow.deploy.targets.jobset import JOBSET_ENV, inner_job, set_policies
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.trainjob import NO_TIME_TO_LIVE, NODE, STEP
from gridflow.deploy.task_start import kubernetes_text, start_words

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

#: Without a program, a worker would be a standard server and wait for a chief forever.
_NO_PROGRAM: Final = "raise SystemExit('set trainer.args in the TrainJob to the program to run')"

NAMESPACED: Final = "it belongs to a namespace; use a TrainJob's runtimePatches"

_NOTHING_OF_A_NAMESPACE: Final[dict[str, Any]] = {
    "volumes": (),
    "secrets": Secrets(),
    "credentials": Credentials(),
    "service_account": None,
    "tensorboard": None,
    "serve": None,
}


class TrainerRuntimeTarget(KubernetesTarget):
    """A ClusterTrainingRuntime."""

    name = "trainer-runtime"
    title = "Kubeflow Trainer v2: a TensorFlow ClusterTrainingRuntime for any TrainJob"
    needs = ("image",)
    cannot: ClassVar = {
        "volumes": NAMESPACED,
        "secrets": NAMESPACED,
        "credentials": NAMESPACED,
        "service_account": NAMESPACED,
        "clean_up": "the underlying JobSet stops running pods; the TrainJob's owner removes it",
        "time_to_live": NO_TIME_TO_LIVE,
    }
    leaves: ClassVar = {
        # All nodes of a TrainJob are alike.
        "roles.chief": "trainjob",
        "roles.ps": "trainjob",
        "roles.evaluator": "trainjob",
        "roles.dispatcher": "trainjob",
        "roles.data": "trainjob",
        "namespace": "the TrainJob",
        "gang": "the TrainJob, by its label",
        "tensorboard": "the targets that train",
        **sides(),
    }

    def render(self, job: Job) -> list[Document]:
        """Return the ClusterTrainingRuntime."""
        job = dataclasses.replace(job, **_NOTHING_OF_A_NAMESPACE)
        port = {"GRIDFLOW_PORT": str(job.port)} if job.port != DEFAULT_PORT else {}
        # Whatever the job's roles, all nodes are like its main role.
        role = job.main_role
        template = task_pod(
            job,
            role,
            words=[*start_words(job, deadline=True), "--"],
            container=NODE,
            port_name="tensorflow",
            cluster=None,
            extra_env=(*env_list(port), *JOBSET_ENV),
        )
        (box,) = template["spec"]["containers"]
        # A TrainJob's arguments replace these and follow the command.
        program = job.command_of(role) or ("python", "-c", _NO_PROGRAM)
        box["args"] = [kubernetes_text(word) for word in program]
        whole = {"metadata": {"labels": dict(STEP)}, "spec": inner_job(job, role, template, NODE)}
        spec: dict[str, Any] = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            **set_policies(job, NODE),
            "replicatedJobs": [{"name": NODE, "replicas": 1, "template": whole}],
        }
        about = metadata(job, job.name)
        about.pop("namespace", None)
        about["labels"] = {**about["labels"], "trainer.kubeflow.org/framework": "tensorflow"}
        runtime = object_document(
            "trainer.kubeflow.org/v1alpha1",
            "ClusterTrainingRuntime",
            about,
            spec={
                "mlPolicy": {"numNodes": job.roles[role].replicas, "torch": {}},
                "template": {"spec": spec},
            },
        )
        return [runtime]
