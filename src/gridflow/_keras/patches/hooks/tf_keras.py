"""The hooks for tf_keras. Imported after tf_keras."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tf_keras import callbacks
from tf_keras.src.engine import data_adapter, training
from tf_keras.src.layers.normalization import batch_normalization

from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.bugs.datasets import check_scope, endless
from gridflow._keras.patches.hooks import (
    empty_batches,
    fits,
    local_steps,
    one_replica_tf_keras,
    own_order,
    predictions,
    returning,
    scope,
    served,
    tensorflow_evaluation,
    zipped,
)
from gridflow._keras.patches.hooks.compiling import check_xla
from gridflow._keras.patches.hooks.incremental import refuse
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

# --- steps_per_epoch other than the steps that the data have ----------------------------------


def _length(dataset: Any) -> int | None:
    if not isinstance(dataset, tf.data.Dataset):
        return None
    found = int(dataset.cardinality())
    return found if found >= 0 else None


def _go_on() -> None:
    def endless_where_asked(init: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        refuse(x)
        init(self, x, *args, **kwargs)
        steps, known = kwargs.get("steps_per_epoch"), _length(x)
        # Only fit shuffles. In evaluate and predict, each row comes once.
        if steps is None or "shuffle" not in kwargs or known in {None, steps}:
            return
        again = endless(x, self._dataset)
        if again is not None:
            self._dataset = again
            self._adapter._gridflow_pass = self._gridflow_pass = known

    def should_recreate_iterator(recreate: Any, self: Any) -> bool:
        if getattr(self, "_gridflow_pass", None) is not None:
            return False
        return bool(recreate(self))

    wrap(data_adapter.DataHandler, "__init__", endless_where_asked, Layer.ROWS)
    adapter = data_adapter.DatasetAdapter
    wrap(adapter, "should_recreate_iterator", should_recreate_iterator, Layer.ROWS)


# --- what fails later, without a hint ----------------------------------------------------------


def _check() -> None:
    def checked(compile_: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_(self, *args, **kwargs)
        if kwargs.get("jit_compile"):
            check_xla(self.distribute_strategy)
        return result

    def looked_at(init: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        strategy = tf.distribute.get_strategy()
        check_scope(x, strategy)
        if "shuffle" in kwargs:  # only fit does
            own_order.say_what_differs(x, strategy)
        with own_order.shuffled_alike(strategy, data_adapter.tf.random):
            init(self, x, *args, **kwargs)

    wrap(training.Model, "compile", checked, Layer.CHECK)
    wrap(data_adapter.DataHandler, "__init__", looked_at, Layer.CHECK)


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
    empty_batches.tf_keras_hook(training.Model, data_adapter.DataHandler, _variables_of_metrics),
    Hook("a part of a batch without rows leaves statistics as they are", _leave_statistics),
    Hook("what fails in the first step is refused before", _check),
    predictions.in_order(training.Model),
    *one_replica_tf_keras.HOOKS,
)
HOOKS: Final = (
    Hook("a fit with steps_per_epoch goes on where the data of a worker end", _go_on),
    tensorflow_evaluation.hook(training.Model, _variables_of_metrics),
    *OF_GROUP,
    served.tf_keras_hook(data_adapter.DataHandler),
    returning.hook(training.Model, "tf_keras"),
    fits.hook(training.Model, callbacks.CallbackList),
    scope.hook(training.Model),
    local_steps.refusal(training.Model),
    zipped.hook(),
)
