"""A Kubeflow notebook with TensorFlow, with a claim for its home and the job's volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.pods import (
    box_security,
    credential_env,
    env_list,
    key_env,
    metadata,
    names,
    placement,
    pod_security,
    resources,
    volumes,
)
from gridflow.deploy.targets.base import Document, Target, object_document
from gridflow.deploy.targets.serving import TRAINING

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job

#: Jupyter's user and group in Kubeflow's images: jovyan and users.
USER: Final = 1000
GROUP: Final = 100
HOME: Final = "/home/jovyan"


def render(job: Job) -> list[Document]:
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
    claim: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(job, name, "notebook"),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": notebook.storage}},
        },
    }
    about = metadata(job, name, "notebook")
    if job.annotations:
        about["annotations"] = dict(job.annotations)
    whole: dict[str, Any] = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "metadata": about,
        "spec": {"template": {"spec": spec}},
    }
    whole["metadata"]["labels"] = {**job.labels, **names(job, "notebook")}
    return [object_document(claim), object_document(whole)]


TARGET: Final = Target(
    name="notebook",
    title="Kubeflow Notebook kubeflow.org/v1 with TensorFlow",
    form="kubernetes",
    render=render,
    leaves={
        key: value
        for key, value in TRAINING.items()
        if key not in {"env", "shared_memory", "notebook"}
    }
    | {"serve": "serving and kserve", "run_as_user": "the notebook's image"},
    needs=("notebook",),
)
