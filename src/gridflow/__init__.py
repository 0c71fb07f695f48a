"""gridflow: TensorFlow and Keras 3 on Spark clusters and beyond.

Importing it imports neither TensorFlow nor Spark; each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gridflow.context import TrainingContext, current_context
    from gridflow.coordinator.policies import (
        MaxRestarts,
        PreemptionAware,
        Restarts,
        RetryableExits,
    )
    from gridflow.distributor import TensorflowDistributor
    from gridflow.errors import (
        BarrierTimeout,
        BrokenBarrier,
        ClientUnreachable,
        DataError,
        EnvironmentMismatch,
        GridflowError,
        InvalidArgument,
        JobCancelled,
        JobExists,
        MissingDependency,
        NetworkError,
        NotEnoughGpus,
        NotEnoughSlots,
        RunTimeout,
        SchemaError,
        StartTimeout,
        StepTimeout,
        TaskLost,
        TrainingFailed,
        UnpicklableFunction,
        UnsafePath,
        WireError,
    )
    from gridflow.feed.encodings import Keys, Padded, Ragged, Sparse
    from gridflow.files.materialized import Materialized
    from gridflow.handle import JobHandle
    from gridflow.launch.local import LocalLauncher
    from gridflow.launch.spark.launcher import SparkLauncher
    from gridflow.launch.spark.materializing import materialize
    from gridflow.ml.model import TrainedModel
    from gridflow.ml.predict import predict_udf
    from gridflow.result import Result
    from gridflow.spec.communication import CommunicationOptions
    from gridflow.spec.failures import exit_code, exit_codes
    from gridflow.spec.gpus import GpuOptions
    from gridflow.spec.network import Network
    from gridflow.spec.option_groups import (
        Deadlines,
        Distribution,
        LaunchOptions,
        Programs,
        Spool,
        TensorBoard,
    )
    from gridflow.spec.partitioners import FixedShardsPartitioner, MinSizePartitioner
    from gridflow.spec.plan import Plan
    from gridflow.spec.tasks import Role

_HOMES: Final = {
    "BarrierTimeout": "errors",
    "BrokenBarrier": "errors",
    "ClientUnreachable": "errors",
    "CommunicationOptions": "spec.communication",
    "DataError": "errors",
    "Deadlines": "spec.option_groups",
    "Distribution": "spec.option_groups",
    "EnvironmentMismatch": "errors",
    "FixedShardsPartitioner": "spec.partitioners",
    "GpuOptions": "spec.gpus",
    "GridflowError": "errors",
    "InvalidArgument": "errors",
    "JobCancelled": "errors",
    "JobExists": "errors",
    "JobHandle": "handle",
    "Keys": "feed.encodings",
    "LaunchOptions": "spec.option_groups",
    "LocalLauncher": "launch.local",
    "Materialized": "files.materialized",
    "MaxRestarts": "coordinator.policies",
    "MinSizePartitioner": "spec.partitioners",
    "MissingDependency": "errors",
    "Network": "spec.network",
    "NetworkError": "errors",
    "NotEnoughGpus": "errors",
    "NotEnoughSlots": "errors",
    "Padded": "feed.encodings",
    "Plan": "spec.plan",
    "PreemptionAware": "coordinator.policies",
    "Programs": "spec.option_groups",
    "Ragged": "feed.encodings",
    "Restarts": "coordinator.policies",
    "Result": "result",
    "RetryableExits": "coordinator.policies",
    "Role": "spec.tasks",
    "RunTimeout": "errors",
    "SchemaError": "errors",
    "SparkLauncher": "launch.spark.launcher",
    "Sparse": "feed.encodings",
    "Spool": "spec.option_groups",
    "StartTimeout": "errors",
    "StepTimeout": "errors",
    "TaskLost": "errors",
    "TensorBoard": "spec.option_groups",
    "TensorflowDistributor": "distributor",
    "TrainedModel": "ml.model",
    "TrainingContext": "context",
    "TrainingFailed": "errors",
    "UnpicklableFunction": "errors",
    "UnsafePath": "errors",
    "WireError": "errors",
    "current_context": "context",
    "exit_code": "spec.failures",
    "exit_codes": "spec.failures",
    "materialize": "launch.spark.materializing",
    "predict_udf": "ml.predict",
}

__all__ = [
    "BarrierTimeout",
    "BrokenBarrier",
    "ClientUnreachable",
    "CommunicationOptions",
    "DataError",
    "Deadlines",
    "Distribution",
    "EnvironmentMismatch",
    "FixedShardsPartitioner",
    "GpuOptions",
    "GridflowError",
    "InvalidArgument",
    "JobCancelled",
    "JobExists",
    "JobHandle",
    "Keys",
    "LaunchOptions",
    "LocalLauncher",
    "Materialized",
    "MaxRestarts",
    "MinSizePartitioner",
    "MissingDependency",
    "Network",
    "NetworkError",
    "NotEnoughGpus",
    "NotEnoughSlots",
    "Padded",
    "Plan",
    "PreemptionAware",
    "Programs",
    "Ragged",
    "Restarts",
    "Result",
    "RetryableExits",
    "Role",
    "RunTimeout",
    "SchemaError",
    "SparkLauncher",
    "Sparse",
    "Spool",
    "StartTimeout",
    "StepTimeout",
    "TaskLost",
    "TensorBoard",
    "TensorflowDistributor",
    "TrainedModel",
    "TrainingContext",
    "TrainingFailed",
    "UnpicklableFunction",
    "UnsafePath",
    "WireError",
    "current_context",
    "exit_code",
    "exit_codes",
    "materialize",
    "predict_udf",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gridflow' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gridflow.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
