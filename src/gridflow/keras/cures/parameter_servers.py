"""Cures for Keras 3 under ParameterServerStrategy. Imported only when Keras is."""

from __future__ import annotations

import inspect
from typing import Any, Final

import numpy as np
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow import core
from tensorflow.python.distribute import ps_values
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

import keras
from gridflow.keras.fixes import Fix

# The probes read the source: to run an operation before MultiWorkerMirroredStrategy is made would
# keep TensorFlow from making it.


def _adding_reads_and_writes() -> bool:
    """Return whether ``assign_add`` is more than one operation: others' updates get lost."""
    return "self.assign(self + value)" in inspect.getsource(core.Variable.assign_add)


def _cure_adding() -> None:
    originals = {name: getattr(core.Variable, name) for name in ("assign_add", "assign_sub")}

    def cured(name: str) -> Any:
        original = originals[name]

        def assign(self: Any, value: Any) -> Any:
            native = self._value
            # Mirrored variables aggregate what is assigned: there Keras's way is right.
            if in_stateless_scope() or not _is_shared(native):
                return original(self, value)
            value = tf.cast(core.convert_to_tensor(value), native.dtype)
            return getattr(native, name)(value)

        return assign

    for name in originals:
        setattr(core.Variable, name, cured(name))


def _is_shared(native: Any) -> bool:
    """Return whether a variable is one that several workers update on their own."""
    if isinstance(native, ps_values.AggregatingVariable):
        return True
    is_plain = isinstance(native, BaseResourceVariable)
    return is_plain and not isinstance(native, tf.distribute.DistributedValues)


def _lookup_needs_the_whole_table() -> bool:
    """Return whether an embedding converts its table to a tensor, whatever it is made of."""
    return "ops.take(" in inspect.getsource(keras.layers.Embedding.call)


def _cure_lookup() -> None:
    original = keras.layers.Embedding.call

    def call(self: Any, inputs: Any) -> Any:
        table = getattr(getattr(self, "_embeddings", None), "_value", None)
        if not isinstance(table, ShardedVariable):
            return original(self, inputs)
        places = tf.cast(inputs, tf.int64)
        return tf.cast(tf.nn.embedding_lookup(table, places), self.compute_dtype)

    keras.layers.Embedding.call = call


def _arrays_need_a_whole() -> bool:
    """Return whether a variable asks the one behind it for an array, which shards don't give."""
    return "self.value.__array__(" in inspect.getsource(core.Variable.__array__)


def _cure_arrays() -> None:
    original = core.Variable.__array__

    def __array__(self: Any, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: N807
        if isinstance(self._value, ShardedVariable):
            found = np.asarray(tf.convert_to_tensor(self._value), dtype)
        else:
            found = original(self, dtype)
        return np.array(found) if copy else found

    core.Variable.__array__ = __array__


FIXES: Final = (
    Fix(
        "lost counts",
        "keras",
        "assign_add reads and then writes, so workers that count together lose counts: "
        "optimizer.iterations under ParameterServerStrategy",
        _adding_reads_and_writes,
        _cure_adding,
    ),
    Fix(
        "sharded embeddings",
        "keras",
        "an Embedding whose table lies in shards on parameter servers fetches all of it",
        _lookup_needs_the_whole_table,
        _cure_lookup,
    ),
    Fix(
        "sharded arrays",
        "keras",
        "a model whose variables lie in shards on parameter servers can't be saved",
        _arrays_need_a_whole,
        _cure_arrays,
    ),
)
