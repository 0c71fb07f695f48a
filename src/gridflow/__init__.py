"""gridflow: TensorFlow and Keras 3 on Spark clusters and beyond.

Importing it imports neither TensorFlow nor Spark; each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gridflow._lazy import lazily

if TYPE_CHECKING:
    from gridflow._coordinator.policies import (
        MaxRestarts,
        PreemptionAware,
        Restarts,
        RetryableExits,
    )
    from gridflow._distributor import TensorflowDistributor
    from gridflow._feed.encodings import Keys, Padded, Ragged, Sparse
    from gridflow._files.materialized import Materialized
    from gridflow._files.parts import FilePart
    from gridflow._handle import JobHandle
    from gridflow._keras.callbacks import chief_only
    from gridflow._keras.kubeflow import TrainerStatus
    from gridflow._keras.loop import Loop
    from gridflow._keras.patches.registry import patch_keras
    from gridflow._keras.sharded import trainable_variables
    from gridflow._launch.base import Launcher
    from gridflow._launch.local import LocalLauncher
    from gridflow._launch.spark.launcher import SparkLauncher
    from gridflow._launch.spark.materializing import materialize
    from gridflow._result import Result
    from gridflow._spec.communication import CommunicationOptions, LocalSteps
    from gridflow._spec.exits import exit_code, exit_codes
    from gridflow._spec.gpus import GpuOptions
    from gridflow._spec.job import Role
    from gridflow._spec.network import Network
    from gridflow._spec.option_groups import (
        Deadlines,
        Distribution,
        FixedShardsPartitioner,
        LaunchOptions,
        MinSizePartitioner,
        Programs,
        Spool,
        TensorBoard,
    )
    from gridflow._spec.plan import Plan
    from gridflow._training.context import TrainingContext, current_context
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
    from gridflow.ml.inference.frames import predict
    from gridflow.ml.model import TrainedModel
    from gridflow.ml.predict import predict_udf

_HOMES: Final = {
    "BarrierTimeout": "errors",
    "BrokenBarrier": "errors",
    "ClientUnreachable": "errors",
    "CommunicationOptions": "_spec.communication",
    "DataError": "errors",
    "Deadlines": "_spec.option_groups",
    "Distribution": "_spec.option_groups",
    "EnvironmentMismatch": "errors",
    "FilePart": "_files.parts",
    "FixedShardsPartitioner": "_spec.option_groups",
    "GpuOptions": "_spec.gpus",
    "GridflowError": "errors",
    "InvalidArgument": "errors",
    "JobCancelled": "errors",
    "JobExists": "errors",
    "JobHandle": "_handle",
    "Keys": "_feed.encodings",
    "LaunchOptions": "_spec.option_groups",
    "LocalSteps": "_spec.communication",
    "Loop": "_keras.loop",
    "Launcher": "_launch.base",
    "LocalLauncher": "_launch.local",
    "Materialized": "_files.materialized",
    "MaxRestarts": "_coordinator.policies",
    "MinSizePartitioner": "_spec.option_groups",
    "MissingDependency": "errors",
    "Network": "_spec.network",
    "NetworkError": "errors",
    "NotEnoughGpus": "errors",
    "NotEnoughSlots": "errors",
    "Padded": "_feed.encodings",
    "Plan": "_spec.plan",
    "PreemptionAware": "_coordinator.policies",
    "Programs": "_spec.option_groups",
    "Ragged": "_feed.encodings",
    "Restarts": "_coordinator.policies",
    "Result": "_result",
    "RetryableExits": "_coordinator.policies",
    "Role": "_spec.job",
    "RunTimeout": "errors",
    "SchemaError": "errors",
    "SparkLauncher": "_launch.spark.launcher",
    "Sparse": "_feed.encodings",
    "Spool": "_spec.option_groups",
    "StartTimeout": "errors",
    "StepTimeout": "errors",
    "TaskLost": "errors",
    "TensorBoard": "_spec.option_groups",
    "TensorflowDistributor": "_distributor",
    "TrainedModel": "ml.model",
    "TrainerStatus": "_keras.kubeflow",
    "TrainingContext": "_training.context",
    "TrainingFailed": "errors",
    "UnpicklableFunction": "errors",
    "UnsafePath": "errors",
    "WireError": "errors",
    "chief_only": "_keras.callbacks",
    "current_context": "_training.context",
    "exit_code": "_spec.exits",
    "exit_codes": "_spec.exits",
    "materialize": "_launch.spark.materializing",
    "patch_keras": "_keras.patches.registry",
    "predict": "ml.inference.frames",
    "predict_udf": "ml.predict",
    "trainable_variables": "_keras.sharded",
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
    "FilePart",
    "FixedShardsPartitioner",
    "GpuOptions",
    "GridflowError",
    "InvalidArgument",
    "JobCancelled",
    "JobExists",
    "JobHandle",
    "Keys",
    "LaunchOptions",
    "Launcher",
    "LocalLauncher",
    "LocalSteps",
    "Loop",
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
    "TrainerStatus",
    "TrainingContext",
    "TrainingFailed",
    "UnpicklableFunction",
    "UnsafePath",
    "WireError",
    "chief_only",
    "current_context",
    "exit_code",
    "exit_codes",
    "materialize",
    "patch_keras",
    "predict",
    "predict_udf",
    "trainable_variables",
]

__getattr__, __dir__ = lazily(__name__, _HOMES)
