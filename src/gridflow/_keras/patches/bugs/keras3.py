"""The patches for Keras 3 (seen in 3.15.1). Imported after Keras.

Probes create no tensors: that would start TensorFlow's eager context, after which a
MultiWorkerMirroredStrategy can't be created and devices can't be configured.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers.data_adapters import tf_dataset_adapter

import keras
from gridflow._keras import group
from gridflow._keras.patches.bugs import (
    aliasing,
    dict_inputs,
    keras3_replicas,
    keras3_scaling,
    keras3_steps,
    parameter_servers,
    tables,
    weights,
)
from gridflow._keras.patches.bugs.datasets import (
    map_distributed,
    steps_after_distribution,
    without_autoshard,
)
from gridflow._keras.patches.hooks import step_logs
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import trainer as trainer_class
from gridflow._keras.patches.registry import Patch
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINER: Final = trainer_class()
_BATCH = 3  # rows of the probes' data; the number doesn't matter


# --- building the model from a batch that is then lost ---------------------------------------


class _ReadOnceError(Exception):
    """Raised by a probe's data if it is read before training."""


class _MustNotBeRead:
    """Stands for the data of ``fit``: has a shape, but raises an error when read."""

    _distributed_dataset = SimpleNamespace(element_spec=(tf.TensorSpec([_BATCH, 1]),))

    def __iter__(self) -> Iterator[object]:
        raise _ReadOnceError


def _building_reads_a_batch() -> bool:
    strategy = SimpleNamespace(scope=contextlib.nullcontext)
    model = SimpleNamespace(
        _distribute_strategy=strategy,
        distribute_strategy=strategy,
        _symbolic_build=lambda **_: None,
        _flatten_layers=list,
        _compile_metrics=None,
        _compile_loss=None,
        optimizer=None,
    )
    try:
        TRAINER._maybe_symbolic_build(model, iterator=_MustNotBeRead())
    except _ReadOnceError:
        return True
    return False


def _is_built(model: Any) -> bool:
    # The conditions of Trainer._symbolic_build, whose work this saves.
    return (
        all(layer.built for layer in model._flatten_layers())
        and (model._compile_metrics is None or model._compile_metrics.built)
        and (model._compile_loss is None or model._compile_loss.built)
        and (model.optimizer is None or model.optimizer.built)
    )


def _has_no_call(model: Any) -> bool:
    """Return whether a model only contains others, which its train_step calls (a GAN)."""
    return type(model).call is keras.Model.call


def _one_replica(spec: Any) -> Any:
    """Return the spec of one replica's part of a batch."""
    parts = getattr(spec, "_value_specs", None)
    return parts[0] if parts else spec


def _symbol(spec: Any) -> Any:
    if spec is None or isinstance(spec, tf.NoneTensorSpec | tf.OptionalSpec):
        return None
    spec = _one_replica(spec)
    return SimpleNamespace(shape=spec.shape, dtype=spec.dtype)


def _all_shapes_known(spec: Any) -> bool:
    shape = getattr(_one_replica(spec), "shape", None)
    return shape is not None and shape.rank is not None


def can_be_built_ahead(model: Any, specs: Any) -> bool:
    """Return whether a model isn't built yet, and can be without a batch.

    Parameters
    ----------
    model : keras.Model
    specs
        Those of its batches.
    """
    return (
        not _is_built(model)
        and not _has_no_call(model)
        and all(_all_shapes_known(spec) for spec in tf.nest.flatten(specs))
    )


def build_from_specs(model: Any, specs: Any) -> None:
    """Build a model and what it was compiled with, without a batch."""
    batch = tf.nest.map_structure(_symbol, specs)
    with model.distribute_strategy.scope():
        model._symbolic_build(data_batch=batch)


def _patch_building() -> None:
    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if self._distribute_strategy is None or iterator is None:
            original(self, iterator=iterator, data_batch=data_batch)
            return
        if _is_built(self) or _has_no_call(self):
            return
        specs = iterator._distributed_dataset.element_spec
        if not all(_all_shapes_known(spec) for spec in tf.nest.flatten(specs)):
            raise ValueError(
                "The model can't be built from this dataset, because its shapes are unknown: "
                f"{specs}. Build the model before fit (model.build(shape), or call it on a "
                "batch), or declare the dataset's shapes (output_signature of from_generator, "
                "tf.ensure_shape in a map).",
            )
        build_from_specs(self, specs)

    wrap(TRAINER, "_maybe_symbolic_build", build, Layer.BUG)


# --- logs that are averaged over an axis which scalars don't have -----------------------------


class _ProbeStrategy(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Records how Keras asks for a mean, without a cluster."""

    def __init__(self) -> None:
        self.axes: list[int | None] = []

    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True)

    def reduce(self, reduce_op: object, value: object, axis: int | None = None) -> object:
        """Record the axis."""
        del reduce_op
        self.axes.append(axis)
        return value


def _means_need_an_axis() -> bool:
    strategy = _ProbeStrategy()
    trainer.reduce_per_replica({"loss": 1.0}, strategy, "auto")
    return 0 in strategy.axes


def _mean_over_workers(strategy: Any, values: Any) -> Any:
    """Average a structure of logs with a single collective operation, if anybody looks at them."""
    leaves = tf.nest.flatten(values)
    numbers = [
        index
        for index, leaf in enumerate(leaves)
        if trainer._is_per_replica_instance(leaf) or tf.is_tensor(leaf)
    ]
    locals_ = [strategy.experimental_local_results(leaves[index]) for index in numbers]
    here = [tf.add_n([tf.cast(v, tf.float32) for v in vs]) / len(vs) for vs in locals_]
    if not here:
        return values
    flat = tf.concat([tf.reshape(value, [-1]) for value in here], axis=0)
    if not step_logs.are_own():
        if len(locals_[0]) > 1:
            flat = strategy.run(tf.identity, args=(flat,))
        flat = strategy.reduce("MEAN", flat, axis=None)
    parts = tf.split(flat, [tf.size(value) for value in here], num=len(here))
    for index, value, part, local in zip(numbers, here, parts, locals_, strict=True):
        shaped = tf.ensure_shape(tf.reshape(part, tf.shape(value)), value.shape)
        leaves[index] = tf.cast(shaped, local[0].dtype)
    return tf.nest.pack_sequence_as(values, leaves)


def _patch_means() -> None:
    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction in {"auto", "mean"} and trainer._collective_all_reduce_multi_worker(strategy):
            return _mean_over_workers(strategy, values)
        return original(values, strategy, reduction)

    wrap(trainer, "reduce_per_replica", reduce_per_replica, Layer.BUG)


# --- class_weight with a dataset that is already distributed ----------------------------------


class _EmptyShell(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """A distributed dataset as far as ``isinstance`` can tell."""

    element_spec = ()
    cardinality = _BATCH

    def __iter__(self) -> Iterator[object]:
        return iter(())


def _class_weight_needs_map() -> bool:
    try:
        with tf.Graph().as_default():  # the weights become a tensor
            tf_dataset_adapter.TFDatasetAdapter(_EmptyShell(), class_weight={0: 1.0})
    except AttributeError as error:
        if "'map'" not in str(error):
            raise
        return True
    except InvalidArgument:  # the patched method sees that the shell isn't TensorFlow's
        return False
    return False


def _patch_class_weight() -> None:
    def init(
        original: Any, self: Any, dataset: Any, class_weight: Any = None, distribution: Any = None
    ) -> None:
        if class_weight is not None and isinstance(dataset, tf.distribute.DistributedDataset):
            to_weights = tf_dataset_adapter.make_class_weight_map_fn(class_weight)
            dataset, class_weight = map_distributed(dataset, to_weights), None
        original(self, dataset, class_weight=class_weight, distribution=distribution)

    wrap(tf_dataset_adapter.TFDatasetAdapter, "__init__", init, Layer.BUG)


# --- autoshard OFF: only the first 1/workers of the batches are used --------------------------


class _WithoutAutoshard(tf.data.Dataset):  # type: ignore[misc]
    """What Keras asks of a dataset before it reads one: three batches, autoshard off."""

    element_spec = (tf.TensorSpec([_BATCH, 1]),)
    _inputs = ()

    def __init__(self) -> None:
        """Create no variant tensor."""

    def cardinality(self) -> int:
        """Return the number of batches before distribution."""
        return _BATCH

    def options(self) -> tf.data.Options:
        """Return options with autoshard off."""
        return without_autoshard(tf.data.Options())


class _TwoWorkers(_ProbeStrategy):
    """What Keras asks of one of two workers before it trains."""

    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True, _num_workers=2)

    def experimental_distribute_dataset(self, dataset: object, options: object = None) -> object:
        """Return the dataset unchanged; only its length is used."""
        del options
        return dataset


def _counts_before_distribution() -> bool:
    epoch = trainer.TFEpochIterator(x=_WithoutAutoshard(), distribute_strategy=_TwoWorkers())
    return bool(epoch.num_batches == _BATCH)


def _patch_counting() -> None:
    def init(
        original: Any, self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        original(self, distribute_strategy, *args, **kwargs)
        steps = steps_after_distribution(distribute_strategy, self.data_adapter.get_tf_dataset())
        if steps is not None:
            self.data_adapter = keras3_steps.with_steps(self.data_adapter, steps)
            self._num_batches = steps

    wrap(trainer.TFEpochIterator, "__init__", init, Layer.BUG)


#: What only strategies with several replicas in a process need.
_OF_REPLICAS: Final = {
    *("build", "means", "class_weight", "autoshard_off", "steps_per_execution"),
    *("gradients", "own steps", "masked losses", "loss scaling"),
}
_ALL: Final = (
    Patch(
        "build",
        "keras",
        "fit and evaluate read a batch to build the model and lose it; under "
        "MultiWorkerMirroredStrategy they fail on it",
        _building_reads_a_batch,
        _patch_building,
    ),
    Patch(
        "means",
        "keras",
        "logs are averaged over an axis that scalars don't have under MultiWorkerMirroredStrategy",
        _means_need_an_axis,
        _patch_means,
    ),
    Patch(
        "class_weight",
        "keras",
        "class_weight fails with a distributed dataset",
        _class_weight_needs_map,
        _patch_class_weight,
    ),
    Patch(
        "autoshard_off",
        "keras",
        "only the first 1/workers of a dataset with autoshard OFF is used for training",
        _counts_before_distribution,
        _patch_counting,
    ),
    aliasing.fix("keras"),
    dict_inputs.fix(),
    *keras3_steps.PATCHES,
    *keras3_replicas.PATCHES,
    *keras3_scaling.PATCHES,
    *parameter_servers.PATCHES,
    tables.fix("keras"),
    weights.fix(),
)
PATCHES: Final = group.elsewhere(_ALL, _OF_REPLICAS)
