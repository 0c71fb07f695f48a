"""Services next to a training job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gridflow.deploy.description import rules
from gridflow.deploy.description.parts import Checks, Resources

if TYPE_CHECKING:
    from collections.abc import Mapping

TENSORBOARD_IMAGE: Final = "tensorflow/tensorflow:2.21.0"
#: Without and with GPUs.
SERVING_IMAGES: Final = ("tensorflow/serving:2.19.1", "tensorflow/serving:2.19.1-gpu")
_NOTEBOOKS: Final = "ghcr.io/kubeflow/kubeflow/notebook-servers"
NOTEBOOK_IMAGES: Final = (
    f"{_NOTEBOOKS}/jupyter-tensorflow:v1.10.0",
    f"{_NOTEBOOKS}/jupyter-tensorflow-cuda:v1.10.0",
)
#: Prefixes of locations outside volumes. The image determines which of them it can read.
BUCKETS: Final = ("gs://", "s3://")


@dataclass(frozen=True)
class TensorBoardSection:
    """TensorBoard for the job.

    Attributes
    ----------
    log_dir : str
        The folder that the tasks write to: a path in one of the job's volumes, ``gs://`` or
        ``s3://``.
    port : int
        6006 by default.
    image : str
        An image that contains ``tensorboard``.
    """

    log_dir: str
    port: int = 6006
    image: str = TENSORBOARD_IMAGE
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        check = Checks()
        if not self.log_dir.startswith(BUCKETS):
            check.add("log_dir", rules.absolute_path(self.log_dir))
        check.add("log_dir", rules.printable(self.log_dir))
        check.plain("log_dir", self.log_dir)
        check.add("port", rules.port_number(self.port))
        check.add("image", rules.image(self.image))
        check.done()


@dataclass(frozen=True)
class Model:
    """A model to serve: ``path`` contains numbered version directories.

    ``versions`` selects versions to serve (by default the newest), and ``labels`` names some of
    them.
    """

    name: str
    path: str
    versions: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", tuple(self.versions))
        object.__setattr__(self, "labels", dict(self.labels))
        check = Checks()
        check.add("name", rules.dns_label(self.name))
        if not self.path.startswith(BUCKETS):
            check.add("path", rules.absolute_path(self.path))
        check.add("path", rules.printable(self.path))
        check.plain("path", self.path)
        for index, version in enumerate(self.versions):
            check.at_least(f"versions[{index}]", version, 0)
        for label, version in self.labels.items():
            if self.versions and version not in self.versions:
                known = ", ".join(map(str, self.versions))
                check.add(f"labels.{label}", f"version {version} isn't served (only {known}).")
        check.done()


@dataclass(frozen=True)
class Batching:
    """Request batching of TensorFlow Serving."""

    max_batch_size: int = 32
    timeout_micros: int = 1000
    max_enqueued_batches: int = 100
    threads: int = 4

    def __post_init__(self) -> None:
        check = Checks()
        check.at_least("max_batch_size", self.max_batch_size, 1)
        check.at_least("timeout_micros", self.timeout_micros, 0)
        check.at_least("max_enqueued_batches", self.max_enqueued_batches, 1)
        check.at_least("threads", self.threads, 1)
        check.done()


@dataclass(frozen=True)
class Serve:
    """Serves trained models with TensorFlow Serving or KServe.

    ``monitoring`` exposes Prometheus metrics, and ``warmup`` replays the requests saved in a
    model's ``assets.extra`` before the model counts as ready. The default ``image`` is TensorFlow
    Serving's, with GPU support if ``resources`` request GPUs.
    """

    models: tuple[Model, ...]
    image: str = ""
    replicas: int = 1
    resources: Resources = field(default_factory=Resources)
    batching: Batching | None = None
    monitoring: bool = False
    warmup: bool = True
    rest_port: int = 8501
    grpc_port: int = 8500

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(self.models))
        if not self.image:
            object.__setattr__(self, "image", SERVING_IMAGES[bool(self.resources.gpu)])
        check = Checks()
        if not self.models:
            check.add("models", "at least one model is needed.")
        names = [model.name for model in self.models]
        for name in sorted({n for n in names if names.count(n) > 1}):
            check.add("models", f"two models have the name {name!r}.")
        check.add("image", rules.image(self.image))
        check.at_least("replicas", self.replicas, 1)
        check.add("rest_port", rules.port_number(self.rest_port))
        check.add("grpc_port", rules.port_number(self.grpc_port))
        if self.rest_port == self.grpc_port:
            check.add("grpc_port", f"is the same as rest_port: {self.grpc_port}.")
        check.done()


@dataclass(frozen=True)
class Notebook:
    """A notebook server with TensorFlow; ``storage`` is the size of its home directory's claim.

    The default ``image`` is Kubeflow's, with CUDA if ``resources`` request GPUs.
    """

    image: str = ""
    storage: str = "10Gi"
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        if not self.image:
            object.__setattr__(self, "image", NOTEBOOK_IMAGES[bool(self.resources.gpu)])
        check = Checks()
        check.add("image", rules.image(self.image))
        check.add("storage", rules.memory(self.storage))
        check.done()
