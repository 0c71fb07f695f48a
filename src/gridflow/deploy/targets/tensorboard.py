"""Kubeflow's Tensorboard object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow.deploy.description.services import BUCKETS
from gridflow.deploy.pods import metadata
from gridflow.deploy.targets.base import Document, Target, object_document
from gridflow.deploy.targets.serving import TRAINING

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job

_CONTROLLERS: Final = "Kubeflow's controller creates the pod and has no field for this"


def render(job: Job) -> list[Document]:
    """Return the Tensorboard object."""
    assert job.tensorboard is not None
    place = job.tensorboard.log_dir
    if not place.startswith(BUCKETS):
        volume = job.volume_of(place)
        assert volume is not None
        below = place[len(volume.path.rstrip("/")) :].strip("/")
        place = f"pvc://{volume.pvc}/{below}"
    about = metadata(job, job.name, "tensorboard")
    if job.annotations:
        about["annotations"] = dict(job.annotations)
    whole: dict[str, Any] = {
        "apiVersion": "tensorboard.kubeflow.org/v1alpha1",
        "kind": "Tensorboard",
        "metadata": about,
        "spec": {"logspath": place},
    }
    return [object_document(whole)]


TARGET: Final = Target(
    name="tensorboard",
    title="Kubeflow Tensorboard tensorboard.kubeflow.org/v1alpha1",
    form="kubernetes",
    render=render,
    cannot={
        "volumes.host": "Kubeflow's TensorBoard reads only claims and buckets",
        "credentials": _CONTROLLERS,
        "service_account": _CONTROLLERS,
        "secrets.image_pull": _CONTROLLERS,
    },
    leaves={key: value for key, value in TRAINING.items() if key != "tensorboard"}
    | dict.fromkeys(
        (
            "volumes",
            "secrets",
            "node_selector",
            "tolerations",
            "affinity",
            "priority_class",
            "run_as_user",
        ),
        "the targets that train",
    )
    | {"serve": "serving and kserve"},
    needs=("tensorboard",),
)
