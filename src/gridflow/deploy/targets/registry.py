"""Targets by name, including those of other packages. Each is imported on first use."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Final

from gridflow._spec.brought import brought, load
from gridflow.deploy.targets.base import Target
from gridflow.errors import InvalidArgument

#: The entry point group with which other packages add targets.
GROUP: Final = "gridflow.targets"
_CLASSES: Final = {
    "local": "local:LocalTarget",
    "docker": "docker:DockerTarget",
    "compose": "compose:ComposeTarget",
    "swarm": "swarm:SwarmTarget",
    "kubernetes": "kubernetes:IndexedJobsTarget",
    "jobset": "jobset:JobSetTarget",
    "tfjob": "tfjob:TFJobTarget",
    "trainjob": "trainjob:TrainJobTarget",
    "volcano": "volcano:VolcanoTarget",
    "marathon": "marathon:MarathonTarget",
    "sparkapplication": "spark:SparkApplicationTarget",
    "spark-submit-standalone": "spark_submit:StandaloneTarget",
    "spark-submit-yarn": "spark_submit:YarnTarget",
    "spark-submit-kubernetes": "spark_submit:SparkPodsTarget",
    "trainer-runtime": "trainer_runtime:TrainerRuntimeTarget",
    "serving": "serving:ServingTarget",
    "kserve": "kserve:KServeTarget",
    "notebook": "notebook:NotebookTarget",
    "tensorboard": "tensorboard:TensorboardTarget",
}
_OURS: Final = tuple(
    EntryPoint(name, f"gridflow.deploy.targets.{place}", GROUP) for name, place in _CLASSES.items()
)
#: Names of gridflow's own targets, training targets first.
TARGETS: Final = tuple(_CLASSES)


def names() -> tuple[str, ...]:
    """Return the names of all targets, gridflow's own first."""
    return tuple(brought(GROUP, _OURS))


def get_target(name: str) -> Target:
    """Return a target.

    Raises
    ------
    InvalidArgument
        If no target has that name, or the package that provides it can't be loaded.
    """
    found = load("target", name, GROUP, _OURS)
    if not (isinstance(found, type) and issubclass(found, Target)):
        reason = f"the target {name!r} must be a subclass of gridflow.deploy.Target; got {found!r}."
        raise InvalidArgument(reason)
    return found()
