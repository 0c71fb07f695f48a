"""The hooks for tf_keras. Imported after tf_keras."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tf_keras import callbacks
from tf_keras.src.engine import data_adapter, training
from tf_keras.src.layers.normalization import batch_normalization

from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.hooks import (
    compiling,
    empty_batches,
    fits,
    local_steps,
    one_replica_tf_keras,
    own_order,
    position,
    scope,
    tensorflow_evaluation,
    zipped,
)
from gridflow._keras.patches.methods import Layer, wrap


def _variables_of_metrics(model: Any) -> list[Any]:
    return [each for metric in model.metrics for each in metric.variables]


# --- a part of a batch without rows ------------------------------------------------------------


def _leave_statistics() -> None:
    """Keep the moving statistics of a replica without rows: it has one that stands for rows."""

    def assign_new_value(original: Any, self: Any, variable: Any, value: Any) -> Any:
        part = shares.current()
        if part is not None:
            value = tf.where(part.rows > 0, value, tf.cast(variable, value.dtype))
        return original(self, variable, value)

    def assign_moving_average(
        original: Any, self: Any, variable: Any, value: Any, momentum: Any, inputs_size: Any
    ) -> Any:
        part = shares.current()
        if self.synchronized:  # those of all replicas, on each of them
            inputs_size = None
        elif part is not None:
            inputs_size = part.rows
        return original(self, variable, value, momentum, inputs_size)

    layer = batch_normalization.BatchNormalizationBase
    wrap(layer, "_assign_new_value", assign_new_value, Layer.BUG)
    wrap(layer, "_assign_moving_average", assign_moving_average, Layer.BUG)


#: What the group's strategy needs, in programs that gridflow doesn't start, too.
OF_GROUP: Final = (
    empty_batches.tf_keras_hook(
        training.Model, data_adapter.DataHandler, _variables_of_metrics, _leave_statistics
    ),
    own_order.hook(data_adapter.DataHandler, "shuffle", data_adapter.tf.random),
    position.hook("tf_keras", data_adapter.DataHandler),
    compiling.hook(training.Model, "tf_keras", compiling.check_xla),
    *one_replica_tf_keras.HOOKS,
)
HOOKS: Final = (
    tensorflow_evaluation.hook(training.Model, _variables_of_metrics),
    *OF_GROUP,
    fits.hook(training.Model, callbacks.CallbackList),
    scope.hook(training.Model, local_steps.refuse),
    zipped.hook(),
)
