"""Models on DataFrames, for Spark ML and SQL.

Importing this package imports neither TensorFlow nor Spark; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gridflow._lazy import lazily
from gridflow.errors import MissingDependency

if TYPE_CHECKING:
    from gridflow.ml.adapting import adapt
    from gridflow.ml.estimator.estimator import KerasEstimator
    from gridflow.ml.estimator.model import KerasModel

_HOMES: Final = {
    "KerasEstimator": "estimator.estimator",
    "KerasModel": "estimator.model",
    "adapt": "adapting",
}

__all__ = ["KerasEstimator", "KerasModel", "adapt"]

_load, __dir__ = lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise MissingDependency(
            f"gridflow.ml.{name} needs pyspark: pip install 'gridflow[spark]'."
        ) from error
