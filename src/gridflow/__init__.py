"""gridflow: TensorFlow and Keras 3 on Spark clusters and beyond.

Importing it imports neither TensorFlow nor Spark; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gridflow.context import TrainingContext, current_context
    from gridflow.distributor import Plan, TensorflowDistributor
    from gridflow.errors import (
        DataError,
        EnvironmentMismatch,
        GridflowError,
        InvalidArgument,
        MissingDependency,
        NotEnoughSlots,
        SchemaError,
        StartTimeout,
        StepTimeout,
        TaskLost,
        TrainingFailed,
        UnpicklableFunction,
    )
    from gridflow.launch.local import LocalLauncher
    from gridflow.launch.spark import SparkLauncher
    from gridflow.ml.model import TrainedModel
    from gridflow.result import Result

_HOMES: Final = {
    "DataError": "errors",
    "EnvironmentMismatch": "errors",
    "GridflowError": "errors",
    "InvalidArgument": "errors",
    "LocalLauncher": "launch.local",
    "MissingDependency": "errors",
    "NotEnoughSlots": "errors",
    "Plan": "distributor",
    "Result": "result",
    "SchemaError": "errors",
    "SparkLauncher": "launch.spark",
    "StartTimeout": "errors",
    "StepTimeout": "errors",
    "TaskLost": "errors",
    "TensorflowDistributor": "distributor",
    "TrainedModel": "ml.model",
    "TrainingContext": "context",
    "TrainingFailed": "errors",
    "UnpicklableFunction": "errors",
    "current_context": "context",
}

__all__ = [
    "DataError",
    "EnvironmentMismatch",
    "GridflowError",
    "InvalidArgument",
    "LocalLauncher",
    "MissingDependency",
    "NotEnoughSlots",
    "Plan",
    "Result",
    "SchemaError",
    "SparkLauncher",
    "StartTimeout",
    "StepTimeout",
    "TaskLost",
    "TensorflowDistributor",
    "TrainedModel",
    "TrainingContext",
    "TrainingFailed",
    "UnpicklableFunction",
    "current_context",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gridflow' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gridflow.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
