"""Targets by name, including those of other packages. Each is imported on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from gridflow.deploy.targets.base import Target

_PLACES: Final = {
    "local": "local:TARGET",
    "docker": "docker:TARGET",
    "compose": "compose:TARGET",
    "swarm": "swarm:TARGET",
    "kubernetes": "kubernetes:TARGET",
    "jobset": "jobset:TARGET",
    "tfjob": "tfjob:TARGET",
    "trainjob": "trainjob:TARGET",
    "volcano": "volcano:TARGET",
    "marathon": "marathon:TARGET",
    "sparkapplication": "spark:TARGET",
    "spark-submit-standalone": "spark_submit:STANDALONE",
    "spark-submit-yarn": "spark_submit:YARN",
    "spark-submit-kubernetes": "spark_submit:KUBERNETES",
    "trainer-runtime": "trainer_runtime:TARGET",
    "serving": "serving:TARGET",
    "kserve": "kserve:TARGET",
    "notebook": "notebook:TARGET",
    "tensorboard": "tensorboard:TARGET",
}
#: The entry point group with which other packages add targets.
GROUP: Final = "gridflow.targets"
#: Names of gridflow's own targets, training targets first.
TARGETS: Final = tuple(_PLACES)


def get_target(name: str) -> Target:
    """Return a target.

    Raises
    ------
    InvalidArgument
        If there is none of that name.
    """
    if name in _PLACES:
        module, _, attribute = _PLACES[name].partition(":")
        target: Target = getattr(import_module(f"gridflow.deploy.targets.{module}"), attribute)
        return target
    brought = {each.name: each for each in entry_points(group=GROUP)}
    if name in brought:
        return brought[name].load()  # type: ignore[no-any-return]
    known = (*TARGETS, *brought)
    reason = f"unknown target {name!r}; available targets: {', '.join(known)}."
    raise InvalidArgument(reason + did_you_mean(name, known))
