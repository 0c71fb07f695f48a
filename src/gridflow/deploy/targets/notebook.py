"""A Kubeflow notebook with TensorFlow, with a claim for its home and the job's volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow.deploy.pods import (
    box_security,
    credential_env,
    env_list,
    key_env,
    metadata,
    object_document,
    placement,
    pod_security,
    resources,
    volumes,
)
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.serving import TRAINING

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

#: Jupyter's user and group in Kubeflow's images: jovyan and users.
USER: Final = 1000
GROUP: Final = 100
HOME: Final = "/home/jovyan"


class NotebookTarget(KubernetesTarget):
    """A Notebook and its claim."""

    name = "notebook"
    title = "Kubeflow Notebook kubeflow.org/v1 with TensorFlow"
    needs = ("notebook",)
    leaves: ClassVar = {
        key: value
        for key, value in TRAINING.items()
        if key not in {"env", "shared_memory", "notebook"}
    } | {"serve": "serving and kserve", "run_as_user": "the notebook's image"}

    def render(self, job: Job) -> list[Document]:
        """Return the Notebook and the claim for its home."""
        assert job.notebook is not None
        notebook = job.notebook
        name = f"{job.name}-notebook"
        sources, mounts = volumes(job)
        sources.insert(0, {"name": "gridflow-home", "persistentVolumeClaim": {"claimName": name}})
        mounts.insert(0, {"name": "gridflow-home", "mountPath": HOME})
        env = env_list(dict(job.env))
        env += [key_env(variable, ref.secret, ref.key) for variable, ref in job.secrets.env.items()]
        # The controller expects the first container to have the notebook's name.
        box: dict[str, Any] = {
            "name": name,
            "image": notebook.image,
            "env": [*env, *credential_env(job)],
            "ports": [{"name": "notebook-port", "containerPort": 8888}],
        }
        if amounts := resources(notebook.resources):
            box["resources"] = amounts
        box["volumeMounts"] = mounts
        box |= box_security(USER)
        # The controller only sets the home's group if the pod doesn't have an fsGroup.
        spec = placement(job, notebook.resources) | pod_security(USER, GROUP)
        spec |= {"containers": [box], "volumes": sources}
        claim = object_document(
            "v1",
            "PersistentVolumeClaim",
            metadata(job, name, "notebook"),
            spec={
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": notebook.storage}},
            },
        )
        about = metadata(job, name, "notebook")
        if job.annotations:
            about["annotations"] = dict(job.annotations)
        whole = object_document(
            "kubeflow.org/v1", "Notebook", about, spec={"template": {"spec": spec}}
        )
        return [claim, whole]
