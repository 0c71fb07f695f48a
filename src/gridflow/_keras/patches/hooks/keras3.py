"""The hooks for Keras 3 on TensorFlow. Imported after Keras."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

import keras
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.bugs.datasets import check_scope, endless
from gridflow._keras.patches.bugs.keras3_steps import with_steps
from gridflow._keras.patches.hooks import (
    empty_batches,
    fits,
    local_steps,
    one_replica,
    own_order,
    position,
    predictions,
    returning,
    saving,
    scope,
    sent,
    served,
    step_logs,
    tensorflow_evaluation,
    zipped,
)
from gridflow._keras.patches.hooks.compiling import check_optimizer, check_xla
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

TRAINER: Final = private_parts.trainer()
_BASE: Final = private_parts.base_trainer()
#: The trainer, its build method, and the class that counts the steps of an epoch.
FIT: Final = (TRAINER, "_maybe_symbolic_build", trainer.TFEpochIterator)


# --- steps_per_epoch other than the steps that the data have -----------------------------------


def _go_on() -> None:
    def init(
        original: Any, self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        original(self, distribute_strategy, *args, **kwargs)
        # Only fit passes class weights. In evaluate and predict, each row comes once.
        is_fit, known = "class_weight" in kwargs, self._num_batches
        if self.steps_per_epoch and is_fit and known not in {None, self.steps_per_epoch}:
            again = endless(kwargs.get("x"), self._distributed_dataset)
            if again is not None:
                self._distributed_dataset = again
                self.data_adapter = with_steps(self.data_adapter, None)
                self._num_batches = None
                self._gridflow_pass = known

    wrap(trainer.TFEpochIterator, "__init__", init, Layer.ROWS)


# --- an epoch whose length comes to be known on the way -----------------------------------------


def _ask_for_steps() -> None:
    position.count_steps(trainer.TFEpochIterator)


# --- data that aren't the workers' in common -----------------------------------------------------


def _check_data() -> None:
    def init(
        original: Any, self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        check_scope(kwargs.get("x"), distribute_strategy)
        if "class_weight" in kwargs:  # only fit passes them
            own_order.say_what_differs(kwargs.get("x"), distribute_strategy)
        with own_order.shuffled_alike(distribute_strategy, tf.random):
            original(self, distribute_strategy, *args, **kwargs)

    wrap(trainer.TFEpochIterator, "__init__", init, Layer.CHECK)


# --- what compile could know -------------------------------------------------------------------


def _check_compiling() -> None:
    def checked(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(self, TRAINER):
            if kwargs.get("jit_compile") is True:
                check_xla(self.distribute_strategy)
            check_optimizer(self.optimizer, self.distribute_strategy)
        return result

    wrap(_BASE, "compile", checked, Layer.CHECK)


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
    sums = [
        tf.reduce_sum(each, layer._reduction_axes)
        for each in (tf.cast(kept, inputs.dtype), values, values**2)
    ]
    replica = tf.distribute.get_replica_context()
    count, *totals = tf.unstack(replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack(sums)))
    mean, square = (total / (count + keras.backend.epsilon()) for total in totals)
    return mean, tf.maximum(square - mean**2, 0)


#: What the group's strategy needs, in programs that gridflow doesn't start, too.
OF_GROUP: Final = (
    Hook("data and model are of one strategy, and all workers shuffle alike", _check_data),
    predictions.in_order(TRAINER),
    Hook("a part of a batch without rows leaves statistics as they are", _leave_statistics),
    Hook("what can't be compiled for several replicas is refused", _check_compiling),
    empty_batches.keras3_hook(TRAINER, _variables_of_metrics),
    *one_replica.HOOKS,
)
HOOKS: Final = (
    Hook("an epoch of steps_per_epoch goes on where the data of a worker end", _go_on),
    Hook("each step of an epoch whose length isn't known is asked for", _ask_for_steps),
    tensorflow_evaluation.hook(TRAINER, _variables_of_metrics),
    *OF_GROUP,
    *sent.hooks(),
    served.keras3_hook(trainer.TFEpochIterator),
    returning.hook(_BASE, "keras"),
    fits.hook(TRAINER, keras.callbacks.CallbackList),
    saving.hook(),
    scope.hook(TRAINER),
    local_steps.hook(),
    step_logs.hook(),
    zipped.hook(),
)
