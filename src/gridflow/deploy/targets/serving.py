"""TensorFlow Serving on Kubernetes: configuration, Deployment and Service."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

from gridflow.deploy.description.problems import Problem, refuse
from gridflow.deploy.description.services import SERVING_IMAGES
from gridflow.deploy.pods import (
    box_security,
    credential_env,
    metadata,
    names,
    object_document,
    placement,
    pod_security,
    resources,
    selector,
    service,
    volumes,
)
from gridflow.deploy.targets.base import sides
from gridflow.deploy.targets.objects import KubernetesTarget

if TYPE_CHECKING:
    from gridflow.deploy.description.description import Job
    from gridflow.deploy.description.services import Serve
    from gridflow.deploy.targets.base import Document

CONFIG: Final = "/etc/gridflow/serving"
CONFIG_HASH: Final = "gridflow/config-hash"
#: Features that only matter for training.
TRAINING: Final = dict.fromkeys(
    (
        "image",
        "command",
        "env",
        "roles",
        "resources",
        "port",
        "classic_flags",
        "restart_policy",
        "restart_limit",
        "start_timeout",
        "deadline",
        "time_to_live",
        "clean_up",
        "gang",
        "shared_memory",
        "tensorboard",
        *sides(but="serve"),
    ),
    "the targets that train",
)


def models_config(serve: Serve) -> str:
    """Return TensorFlow Serving's ``model_config_list`` in protobuf's text format."""
    lines = ["model_config_list {"]
    for model in serve.models:
        lines += ["  config {", f"    name: {json.dumps(model.name)}"]
        lines += [f"    base_path: {json.dumps(model.path)}", '    model_platform: "tensorflow"']
        if model.versions:
            lines.append("    model_version_policy {")
            versions = " ".join(f"versions: {version}" for version in model.versions)
            lines += [f"      specific {{ {versions} }}", "    }"]
        for label, version in model.labels.items():
            lines += ["    version_labels {", f"      key: {json.dumps(label)}"]
            lines += [f"      value: {version}", "    }"]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def files(serve: Serve) -> dict[str, str]:
    """Return the servers' configuration files."""
    found = {"models.config": models_config(serve)}
    if batching := serve.batching:
        settings = {
            "max_batch_size": batching.max_batch_size,
            "batch_timeout_micros": batching.timeout_micros,
            "max_enqueued_batches": batching.max_enqueued_batches,
            "num_batch_threads": batching.threads,
        }
        lines = [f"{name} {{ value: {value} }}\n" for name, value in settings.items()]
        found["batching.config"] = "".join(lines)
    if serve.monitoring:
        path = json.dumps("/monitoring/prometheus/metrics")
        found["monitoring.config"] = f"prometheus_config {{ enable: true path: {path} }}\n"
    return found


def server_words(serve: Serve) -> list[str]:
    """Return the arguments of ``tensorflow_model_server``."""
    words = [
        f"--port={serve.grpc_port}",
        f"--rest_api_port={serve.rest_port}",
        f"--model_config_file={CONFIG}/models.config",
        f"--enable_model_warmup={str(serve.warmup).lower()}",
    ]
    if any(model.labels for model in serve.models):
        words.append("--allow_version_labels_for_unavailable_models=true")
    if serve.batching:
        words += ["--enable_batching=true", f"--batching_parameters_file={CONFIG}/batching.config"]
    if serve.monitoring:
        words.append(f"--monitoring_config_file={CONFIG}/monitoring.config")
    return words


def check_buckets(serve: Serve) -> None:
    """Reject models that the image can't read.

    Raises `JobError`: For ``s3://`` with a default image: TensorFlow 2.7 moved S3 to tensorflow-io,
        which isn't in TensorFlow Serving's image.
    """
    if serve.image not in SERVING_IMAGES:
        return
    refuse(
        [
            Problem(
                f"serve.models[{index}].path",
                f"the image {serve.image} can't read {model.path!r}. Use the target kserve, which "
                "fetches the model itself, put the model on a volume or in gs://, or set "
                "serve.image to an image that reads S3.",
            )
            for index, model in enumerate(serve.models)
            if model.path.startswith("s3://")
        ]
    )


class ServingTarget(KubernetesTarget):
    """TensorFlow Serving as a Deployment."""

    name = "serving"
    title = "TensorFlow Serving on Kubernetes"
    needs = ("serve",)
    cannot: ClassVar = {
        "secrets.env": "TensorFlow Serving doesn't read such variables; use credentials"
    }
    leaves: ClassVar = TRAINING

    def render(self, job: Job) -> list[Document]:
        """Return configuration, Deployment and Service."""
        assert job.serve is not None
        serve = job.serve
        check_buckets(serve)
        name = f"{job.name}-serving"
        config = object_document(
            "v1", "ConfigMap", metadata(job, name, "serving"), data=files(serve)
        )
        # Metadata is only available once the model is loaded and warmed up, later than the status.
        ready = {"path": f"/v1/models/{serve.models[0].name}/metadata", "port": "rest"}
        sources, mounts = volumes(job, looks_on=True)
        sources.append({"name": "gridflow-serving", "configMap": {"name": name}})
        mounts.append({"name": "gridflow-serving", "mountPath": CONFIG, "readOnly": True})
        box: dict[str, Any] = {
            "name": "serving",
            "image": serve.image,
            "command": ["tensorflow_model_server"],
            "args": server_words(serve),
            "ports": [
                {"name": "rest", "containerPort": serve.rest_port},
                {"name": "grpc", "containerPort": serve.grpc_port},
            ],
            "startupProbe": {"httpGet": dict(ready), "periodSeconds": 5, "failureThreshold": 120},
            "readinessProbe": {"httpGet": dict(ready), "periodSeconds": 5},
            "livenessProbe": {"tcpSocket": {"port": "grpc"}, "periodSeconds": 10},
        }
        if env := credential_env(job):
            box["env"] = env
        if amounts := resources(serve.resources):
            box["resources"] = amounts
        box["volumeMounts"] = mounts
        box |= box_security(job.run_as_user, read_only=True)
        spec = placement(job, serve.resources) | pod_security(job.run_as_user)
        spec |= {"containers": [box], "volumes": sources}
        # A server reads its configuration once, so a change must give the Deployment new pods.
        digest = hashlib.sha256(
            json.dumps(config.content["data"], sort_keys=True).encode()
        ).hexdigest()
        annotations = {CONFIG_HASH: digest[:16], **job.annotations}
        if serve.monitoring:
            annotations = {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": str(serve.rest_port),
                "prometheus.io/path": "/monitoring/prometheus/metrics",
                **annotations,
            }
        about: dict[str, Any] = {"labels": {**job.labels, **names(job, "serving")}}
        about["annotations"] = annotations
        deployment = object_document(
            "apps/v1",
            "Deployment",
            metadata(job, name, "serving"),
            spec={
                "replicas": serve.replicas,
                "selector": {"matchLabels": selector(job, "serving")},
                "template": {"metadata": about, "spec": spec},
            },
        )
        front = service(job, name, {"rest": serve.rest_port, "grpc": serve.grpc_port}, "serving")
        return [config, deployment, front]
