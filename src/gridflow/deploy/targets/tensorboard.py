"""Kubeflow's Tensorboard object."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from gridflow.deploy.description.services import BUCKETS
from gridflow.deploy.pods import metadata, object_document
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.serving import TRAINING

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.targets.base import Document

_CONTROLLERS: Final = "Kubeflow's controller creates the pod and has no field for this"


class TensorboardTarget(KubernetesTarget):
    """A Tensorboard object."""

    name = "tensorboard"
    title = "Kubeflow Tensorboard tensorboard.kubeflow.org/v1alpha1"
    needs = ("tensorboard",)
    cannot: ClassVar = {
        "volumes.host": "Kubeflow's TensorBoard reads only claims and buckets",
        "credentials": _CONTROLLERS,
        "service_account": _CONTROLLERS,
        "secrets.image_pull": _CONTROLLERS,
    }
    leaves: ClassVar = (
        {key: value for key, value in TRAINING.items() if key != "tensorboard"}
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
        | {"serve": "serving and kserve"}
    )

    def render(self, job: Job) -> list[Document]:
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
        whole = object_document(
            "tensorboard.kubeflow.org/v1alpha1", "Tensorboard", about, spec={"logspath": place}
        )
        return [whole]
