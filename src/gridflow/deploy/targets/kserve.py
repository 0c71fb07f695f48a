"""KServe: an InferenceService for each model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from gridflow.deploy.description.services import BUCKETS
from gridflow.deploy.pods import metadata, object_document, placement, resources
from gridflow.deploy.targets.objects import KubernetesTarget
from gridflow.deploy.targets.serving import TRAINING

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.services import Model
    from gridflow.deploy.targets.base import Document


def storage(job: Job, model: Model) -> str:
    """Return the URI from which KServe loads a model."""
    if model.path.startswith(BUCKETS):
        return model.path
    volume = job.volume_of(model.path)
    assert volume is not None
    below = model.path[len(volume.path.rstrip("/")) :].strip("/")
    if volume.pvc:
        return f"pvc://{volume.pvc}/{below}".rstrip("/")
    return f"file://{volume.host}/{below}".rstrip("/")


class KServeTarget(KubernetesTarget):
    """An InferenceService for each model."""

    name = "kserve"
    title = "KServe InferenceService serving.kserve.io/v1beta1"
    needs = ("serve",)
    cannot: ClassVar = {
        "serve.versions": "KServe serves the directory in storageUri, with one version each",
        "volumes.host": "KServe's storage initializer can't access host directories",
        "volumes.secret": "the model container is KServe's own",
        "volumes.config": "the model container is KServe's own",
        "volumes.empty": "the model container is KServe's own",
        "secrets.env": "the model container is KServe's own",
        "secrets.files": "the model container is KServe's own",
        "credentials": "KServe takes credentials from the secrets of service_account",
    }
    leaves: ClassVar = TRAINING | {"run_as_user": "KServe's runtime"}

    def render(self, job: Job) -> list[Document]:
        """Return an InferenceService for each model."""
        assert job.serve is not None
        serve = job.serve
        documents = []
        for model in serve.models:
            box: dict[str, Any] = {
                "modelFormat": {"name": "tensorflow"},
                "storageUri": storage(job, model),
            }
            if amounts := resources(serve.resources):
                box["resources"] = amounts
            predictor: dict[str, Any] = {
                "minReplicas": serve.replicas,
                "maxReplicas": serve.replicas,
                **placement(job, serve.resources),
                "model": box,
            }
            if batching := serve.batching:
                predictor["batcher"] = {
                    "maxBatchSize": batching.max_batch_size,
                    "maxLatency": max(1, batching.timeout_micros // 1000),
                }
            about = metadata(job, f"{job.name}-{model.name}", "serving")
            if job.annotations or serve.monitoring:
                scrape = {"serving.kserve.io/enable-prometheus-scraping": "true"}
                about["annotations"] = {**(scrape if serve.monitoring else {}), **job.annotations}
            whole = object_document(
                "serving.kserve.io/v1beta1",
                "InferenceService",
                about,
                spec={"predictor": predictor},
            )
            documents.append(whole)
        return documents
