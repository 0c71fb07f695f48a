"""TensorFlowOnSpark's Spark ML classes: `TFEstimator` trains on a cluster, `TFModel` predicts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model

from gridflow.compat.tfos import TFCluster, _setting
from gridflow.compat.tfos._params import (
    HasBatchSize,
    HasClusterSize,
    HasEpochs,
    HasExportDir,
    HasGraceSecs,
    HasInputMapping,
    HasInputMode,
    HasMasterNode,
    HasModelDir,
    HasNumPS,
    HasOutputMapping,
    HasProtocol,
    HasReaders,
    HasSignatureDefKey,
    HasSteps,
    HasTagSet,
    HasTensorboard,
    HasTFRecordDir,
    Namespace,
    TFParams,
    TFTypeConverters,
)
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "Namespace",
    "TFEstimator",
    "TFModel",
    "TFParams",
    "TFTypeConverters",
    "get_meta_graph_def",
    "single_node_env",
    "yield_batch",
]

_log = logging.getLogger(__name__)


class TFEstimator(
    Estimator,  # type: ignore[type-arg]
    TFParams,
    HasInputMapping,
    HasClusterSize,
    HasNumPS,
    HasInputMode,
    HasMasterNode,
    HasProtocol,
    HasGraceSecs,
    HasTensorboard,
    HasModelDir,
    HasExportDir,
    HasTFRecordDir,
    HasBatchSize,
    HasEpochs,
    HasReaders,
    HasSteps,
):
    """Trains on a cluster that is fed the columns of a DataFrame.

    Parameters
    ----------
    train_fn : callable
        ``train_fn(args, ctx)``; ``args`` also contains the parameters.
    tf_args : argparse.Namespace, dict or list
    export_fn : callable, optional
        Not supported, as in the original on TensorFlow 2: export in ``train_fn``.
    """

    def __init__(
        self,
        train_fn: Callable[[Any, Any], Any],
        tf_args: Any,
        export_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        if export_fn is not None:
            raise InvalidArgument(
                "export_fn was for TensorFlow 1: export at the end of train_fn, with "
                "compat.export_saved_model(model, args.export_dir, ctx.job_name == 'chief')."
            )
        self.train_fn, self.export_fn = train_fn, export_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            readers=1,
            steps=1000,
            grace_secs=30,
        )

    def _fit(self, dataset: DataFrame) -> TFModel:
        merged = self.merge_args_params()
        columns = sorted(self.getInputMapping())
        if not columns:
            raise InvalidArgument(
                "no columns to feed: set them with setInputMapping({'column': 'tensor'})."
            )
        cluster = TFCluster.run(
            dataset.sparkSession.sparkContext,
            self.train_fn,
            self.args.argv or merged,
            merged.cluster_size,
            merged.num_ps,
            merged.tensorboard,
            TFCluster.InputMode.SPARK,
            master_node=merged.master_node,
            driver_ps_nodes=merged.driver_ps_nodes,
        )
        try:
            cluster.train(dataset.select(columns).rdd, merged.epochs)
        except BaseException:
            cluster.cancel()
            raise
        cluster.shutdown(grace_secs=self.getGraceSecs())
        model: TFModel = self._copyValues(TFModel(self.args))
        return model


class TFModel(
    Model,
    TFParams,
    HasInputMapping,
    HasOutputMapping,
    HasBatchSize,
    HasModelDir,
    HasExportDir,
    HasSignatureDefKey,
    HasTagSet,
):
    """Predicts independently on each executor, with a SavedModel or a TensorFlow 1 checkpoint.

    Without ``export_dir``, the newest checkpoint in ``model_dir`` is restored together with its
    graph (``.meta``); the mappings then name tensors of the graph, with or without ``:0``. The
    result has only the columns of ``output_mapping``, as in the original.

    Parameters
    ----------
    tf_args : argparse.Namespace, dict or list
        Its ``num_gpus`` is the number of GPUs for each Python worker. Default: 1 on hosts with
        GPUs.
    """

    def __init__(self, tf_args: Any) -> None:
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            output_mapping={},
            batch_size=100,
            model_dir=None,
            export_dir=None,
            signature_def_key=None,
            tag_set=None,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from gridflow.compat.tfos import _predicting

        merged = self.merge_args_params()
        if not merged.export_dir and not merged.model_dir:
            raise InvalidArgument(
                "no model to predict with: set a SavedModel with setExportDir(), or the folder of "
                "a TensorFlow 1 checkpoint with setModelDir()."
            )
        if not merged.export_dir and merged.signature_def_key:
            raise InvalidArgument(
                f"signature_def_key={merged.signature_def_key!r} needs a SavedModel: call "
                "setExportDir(). The tensors of a checkpoint (setModelDir()) are addressed by "
                "their names in the graph, such as 'x' or 'layer/Sigmoid'."
            )
        inputs, outputs = merged.input_mapping, merged.output_mapping
        for name, mapping in {"Input": inputs, "Output": outputs}.items():
            if not mapping:
                raise InvalidArgument(f"set{name}Mapping() must name at least one tensor.")
        work = _predicting.Work(
            merged.export_dir or None,
            merged.model_dir,
            None if merged.tag_set is None else tuple(merged.tag_set.split(",")),
            merged.signature_def_key or "serving_default",
            tuple((column, inputs[column]) for column in sorted(inputs)),
            tuple((tensor, outputs[tensor]) for tensor in sorted(outputs)),
            merged.batch_size,
            self.args.argv,
            _setting.num_gpus(self.args),
        )
        return _predicting.transform(dataset, work)


def single_node_env(args: Any) -> None:
    """Set ``sys.argv`` and the GPUs of a process that runs TensorFlow on its own."""
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    _setting.single_node_env(argv, _setting.num_gpus(args))


def get_meta_graph_def(saved_model_dir: str, tag_set: str) -> Any:
    """Return a SavedModel's graph with these tags (comma-separated).

    Raises
    ------
    GridflowError
        If there is no graph with exactly these tags.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    found = saved_model_pb2.SavedModel()
    found.ParseFromString(Path(saved_model_dir, "saved_model.pb").read_bytes())
    wanted = set(tag_set.split(","))
    for graph in found.meta_graphs:
        if set(graph.meta_info_def.tags) == wanted:
            return graph
    has = ["+".join(graph.meta_info_def.tags) for graph in found.meta_graphs]
    raise GridflowError(f"{saved_model_dir} has no graph tagged {tag_set!r}; it has {has}.")


def yield_batch(
    iterable: Iterable[Any], batch_size: int, num_tensors: int = 1
) -> Iterator[list[list[Any]]]:
    """Yield batches of rows, with one list for each tensor; stop at None."""
    batch: list[list[Any]] = [[] for _ in range(num_tensors)]
    for row in iterable:
        if row is None:
            break
        for place, cells in enumerate(batch):
            cell = row[place]
            cells.append(bytes(cell) if isinstance(cell, bytearray) else cell)
        if len(batch[0]) >= batch_size:
            yield batch
            batch = [[] for _ in range(num_tensors)]
    if batch[0]:
        yield batch
