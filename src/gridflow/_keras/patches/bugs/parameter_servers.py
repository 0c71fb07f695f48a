"""Patches for Keras 3 under ParameterServerStrategy. Imported after Keras."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common.stateless_scope import in_stateless_scope
from tensorflow.python.distribute import ps_values
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

import keras
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

# Probes create no tensors, see `keras3`.

#: The key of Keras's variables in TensorFlow's checkpoints.
_VALUE: Final = "VARIABLE_VALUE"


class _SharedNative(ps_values.AggregatingVariable):  # type: ignore[misc]
    """What Keras asks of a variable shared by workers; records additions."""

    dtype = tf.float32
    is_added_to = False

    def __init__(self) -> None:
        """Hold no variable."""

    def assign_add(self, *_: Any, **__: Any) -> None:
        self.is_added_to = True


class _Counter(backend.Variable):  # type: ignore[misc]
    """The Keras variable around it."""

    def __init__(self) -> None:
        self.__dict__["_value"] = _SharedNative()

    def __add__(self, value: object) -> object:
        return value

    def assign(self, value: object) -> None:
        """Write a value that was read and added to before."""


def _adding_reads_and_writes() -> bool:
    """Return whether ``assign_add`` is several operations, so that updates get lost."""
    counter = _Counter()
    with tf.Graph().as_default():
        counter.assign_add(1.0)
    return not counter._value.is_added_to


def _patch_adding() -> None:
    def patched(name: str) -> Any:
        def assign(original: Any, self: Any, value: Any) -> Any:
            native = self._value
            # Mirrored variables aggregate assigned values; Keras is right there.
            if in_stateless_scope() or not _is_shared(native):
                return original(self, value)
            value = tf.cast(keras.ops.convert_to_tensor(value), native.dtype)
            return getattr(native, name)(value)

        return assign

    for name in ("assign_add", "assign_sub"):
        wrap(backend.Variable, name, patched(name), Layer.BUG)


def _is_shared(native: Any) -> bool:
    """Return whether several workers update a variable independently."""
    if isinstance(native, ps_values.AggregatingVariable):
        return True
    is_plain = isinstance(native, BaseResourceVariable)
    return is_plain and not isinstance(native, tf.distribute.DistributedValues)


def _lookup_needs_the_whole_table() -> bool:
    """Return whether an embedding converts its table to a tensor, even a sharded one."""
    with tf.Graph().as_default() as graph:
        table = ShardedVariable([tf.Variable(tf.zeros([1, 1]))])  # a single shard is fastest
        layer = SimpleNamespace(
            _embeddings=SimpleNamespace(_value=table), embeddings=table, compute_dtype="float32"
        )
        there = len(graph.get_operations())
        keras.layers.Embedding.call(layer, tf.compat.v1.placeholder(tf.int32, [1]))
        made = graph.get_operations()[there:]
    return any(operation.type == "ReadVariableOp" for operation in made)


def _patch_lookup() -> None:
    def call(original: Any, self: Any, inputs: Any) -> Any:
        table = getattr(getattr(self, "_embeddings", None), "_value", None)
        if not isinstance(table, ShardedVariable):
            return original(self, inputs)
        places = tf.cast(inputs, tf.int64)
        return tf.cast(tf.nn.embedding_lookup(table, places), self.compute_dtype)

    wrap(keras.layers.Embedding, "call", call, Layer.BUG)


def _arrays_need_a_whole() -> bool:
    """Return whether a variable asks its native variable for an array, which shards don't have."""
    try:
        _InShards().__array__()
    except AttributeError as error:
        if error.name != "__array__":
            raise
        return True
    except _AskedForShardsError:
        return False
    return False


class _AskedForShardsError(Exception):
    """Raised if shards would be combined."""


class _Shards(ShardedVariable):  # type: ignore[misc]
    def __init__(self) -> None:
        """Hold no variable."""

    @property
    def variables(self) -> Any:
        raise _AskedForShardsError

    _variables = variables


class _InShards(backend.Variable):  # type: ignore[misc]
    def __init__(self) -> None:
        self.__dict__["_value"] = _Shards()

    @property
    def value(self) -> Any:
        return self._value


def _patch_arrays() -> None:
    def as_array(original: Any, self: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        if isinstance(self._value, ShardedVariable):
            found = np.asarray(tf.convert_to_tensor(self._value), dtype)
        else:
            found = original(self, dtype)
        return np.array(found) if copy else found

    wrap(backend.Variable, "__array__", as_array, Layer.BUG)


def _checkpoints_need_a_whole() -> bool:
    """Return whether a variable passes all its shards to a checkpoint as if they were one."""
    try:
        found = _InShards()._serialize_to_tensors()
    except _AskedForShardsError:
        return False
    return any(isinstance(each, ShardedVariable) for each in found.values())


def _patch_checkpoints() -> None:
    def to_tensors(serialize: Any, self: Any) -> Any:
        if not isinstance(self._value, ShardedVariable):
            return serialize(self)
        # Complete, as in all of gridflow's other files.
        return {_VALUE: tf.convert_to_tensor(self._value)}

    def from_tensors(restore: Any, self: Any, restored_tensors: Any) -> Any:
        if not isinstance(self._value, ShardedVariable):
            return restore(self, restored_tensors)
        self._value.assign(restored_tensors[_VALUE])
        return self._value

    wrap(backend.Variable, "_serialize_to_tensors", to_tensors, Layer.BUG)
    wrap(backend.Variable, "_restore_from_tensors", from_tensors, Layer.BUG)


PATCHES: Final = (
    Patch(
        "lost counts",
        "keras",
        "assign_add reads and then writes, so workers that count together lose counts: "
        "optimizer.iterations under ParameterServerStrategy",
        _adding_reads_and_writes,
        _patch_adding,
    ),
    Patch(
        "sharded embeddings",
        "keras",
        "an Embedding with a sharded table on parameter servers fetches the whole table",
        _lookup_needs_the_whole_table,
        _patch_lookup,
    ),
    Patch(
        "sharded arrays",
        "keras",
        "a model with sharded variables on parameter servers can't be saved",
        _arrays_need_a_whole,
        _patch_arrays,
    ),
    Patch(
        "sharded checkpoints",
        "keras",
        "tf.train.Checkpoint fails on a model with sharded variables on parameter servers",
        _checkpoints_need_a_whole,
        _patch_checkpoints,
    ),
)
