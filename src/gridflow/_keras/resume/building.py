"""Builds what Keras builds with the first batch, so that it can be restored before that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gridflow._keras import sharded
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import position
from gridflow._keras.results import is_tensorflow
from gridflow.errors import InvalidArgument


def build(model: Any, flavour: str) -> None:
    """Build model, optimizer, losses and metrics for the data of the fit that has begun.

    Raises `InvalidArgument`: The model isn't built, and the shapes of its data are unknown.
    """
    if not is_tensorflow(model):
        _build_other(model)
        return
    spec = position.element_spec(model, flavour)
    if spec is None:
        if model.built and private_parts.is_optimizer_built(model.optimizer):
            return
        raise _unknown_shapes()
    with model.distribute_strategy.scope():
        build_for(model, flavour, spec)


def build_for(model: Any, flavour: str, spec: Any) -> None:
    """Build everything for batches of a spec, in the current scope."""
    if flavour == "keras":
        _build_keras3(model, spec)
    else:
        _build_tf_keras(model, spec)


def build_sharded(model: Any, spec: Any) -> None:
    """Build a Keras 3 model and its optimizer, with slots for each shard."""
    import tensorflow as tf

    import keras

    if not model.built:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(spec)
        symbols = tf.nest.map_structure(lambda one: keras.KerasTensor(one.shape, one.dtype), x)
        private_parts.compute_output_spec(model, symbols)
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(sharded.trainable_variables(model))


def build_optimizer(optimizer: Any, variables: Any) -> None:
    """Build an optimizer for these variables, legacy ones of tf_keras too."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    else:
        private_parts.make_slots(optimizer, variables)


def _build_other(model: Any) -> None:
    # On these backends Keras has already built the model, its losses and metrics.
    if not model.built:
        raise _unknown_shapes()
    if not private_parts.is_optimizer_built(model.optimizer):
        model.optimizer.build(model.trainable_variables)


def _unknown_shapes() -> InvalidArgument:
    return InvalidArgument(
        "a checkpoint can't be restored into this model: it isn't built, and the shapes of its "
        "data are unknown. Build the model before fit: model.build(shape), or an Input layer."
    )


def _build_keras3(model: Any, spec: Any) -> None:
    import tensorflow as tf

    symbols = tf.nest.map_structure(
        lambda one: SimpleNamespace(shape=one.shape, dtype=one.dtype), spec
    )
    private_parts.build(model, symbols)


def _build_tf_keras(model: Any, spec: Any) -> None:
    import tensorflow as tf
    import tf_keras

    def zeros(one: Any) -> Any:
        return tf.zeros([1 if size is None else size for size in one.shape], one.dtype)

    x, y, _ = tf_keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(zeros, spec))
    outputs = model(x, training=False)
    optimizer = model.optimizer
    build_optimizer(optimizer, model.trainable_variables)
    if not model.compiled_loss.built:
        model.compiled_loss.build(outputs)
    if not model.compiled_metrics.built:
        model.compiled_metrics.build(outputs, y)
