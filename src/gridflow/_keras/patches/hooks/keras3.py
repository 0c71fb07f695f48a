"""The hooks for Keras 3 on TensorFlow. Imported after Keras."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

import keras
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.hooks import (
    compiling,
    empty_batches,
    fits,
    local_steps,
    one_replica,
    own_order,
    position,
    saving,
    scope,
    sent,
    step_logs,
    tensorflow_evaluation,
    zipped,
)
from gridflow._keras.patches.methods import Layer, wrap

TRAINER: Final = private_parts.trainer()
_BASE: Final = private_parts.base_trainer()
#: The trainer, its build method, and the class that counts the steps of an epoch.
FIT: Final = (TRAINER, "_maybe_symbolic_build", trainer.TFEpochIterator)


def _variables_of_metrics(model: Any) -> list[Any]:
    return list(model.metrics_variables)


# --- a part of a batch without rows ------------------------------------------------------------


def _leave_statistics() -> None:
    """Keep the moving statistics of a replica without rows in a step.

    They would be 0 / 0, or those of a row that only stands for rows. Where replicas have statistics
    in common, that one isn't counted.
    """
    layer = keras.layers.BatchNormalization

    def moments(original: Any, self: Any, inputs: Any, mask: Any) -> Any:
        part = shares.current()
        if part is not None and self.synchronized:
            return (original if mask is None else _masked_moments)(self, inputs, mask)
        if part is None or not empty_batches.may_stand_for_rows(inputs):
            return original(self, inputs, mask)
        found = original(self, inputs, mask)
        kept = (self.moving_mean, self.moving_variance)
        return tuple(
            tf.where(part.rows > 0, new, tf.cast(old.value, new.dtype))
            for new, old in zip(found, kept, strict=True)
        )

    wrap(layer, "_moments", moments, Layer.BUG)


def _masked_moments(layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return moments of what a mask keeps on all replicas; Keras synchronizes only without one."""
    kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
    values = tf.where(kept, inputs, tf.zeros_like(inputs))
    axes = [axis for axis in range(inputs.shape.rank) if axis != layer.axis % inputs.shape.rank]
    sums = [tf.reduce_sum(each, axes) for each in (tf.cast(kept, inputs.dtype), values, values**2)]
    replica = tf.distribute.get_replica_context()
    count, *totals = tf.unstack(replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack(sums)))
    mean, square = (total / (count + keras.backend.epsilon()) for total in totals)
    return mean, tf.maximum(square - mean**2, 0)


#: What the group's strategy needs, in programs that gridflow doesn't start, too.
OF_GROUP: Final = (
    own_order.hook(trainer.TFEpochIterator, "class_weight", tf.random),
    position.hook("keras", trainer.TFEpochIterator),
    compiling.hook(_BASE, "keras", compiling.check_optimizer),
    empty_batches.keras3_hook(TRAINER, _variables_of_metrics, _leave_statistics),
    *one_replica.HOOKS,
)
HOOKS: Final = (
    tensorflow_evaluation.hook(TRAINER, _variables_of_metrics),
    *OF_GROUP,
    sent.hook(),
    fits.hook(TRAINER, keras.callbacks.CallbackList),
    saving.hook(),
    scope.hook(TRAINER),
    local_steps.hook(),
    step_logs.hook(),
    zipped.hook(),
)
