"""Measures how long the steps of TensorFlow wait for their batches, which they fetch themselves."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import module

if TYPE_CHECKING:
    from gridflow._keras.due import Spent

_CPU: Final = "/device:CPU:0"


@functools.cache
def install(spent: Spent) -> None:
    """Measure it in all functions that are traced from now on."""
    inside = threading.local()

    @functools.cache
    def waited() -> Any:
        # Not before it is needed: it makes TensorFlow take its devices as they are. Of this class,
        # as a strategy would make others its own.
        kind = module("tensorflow.python.ops.resource_variable_ops").ResourceVariable
        with tf.init_scope(), tf.device(_CPU):
            return kind(0.0, trainable=False, dtype=tf.float64, name="waited_for_batches")

    def measured(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        if not graph.building_function or getattr(inside, "is_so", False):
            return original(self, *args, **kwargs)
        inside.is_so = True
        try:
            with tf.device(_CPU):
                began = tf.timestamp()
            with tf.control_dependencies([began]):
                batch = original(self, *args, **kwargs)
            parts = tf.nest.flatten(batch, expand_composites=True)
            with tf.device(_CPU), tf.control_dependencies([p for p in parts if tf.is_tensor(p)]):
                took = tf.timestamp() - began
                tf.raw_ops.AssignAddVariableOp(resource=waited().handle, value=took)
        finally:
            inside.is_so = False
        return batch

    home = module("tensorflow.python.data.ops.iterator_ops").OwnedIterator
    for name in ("__next__", "get_next", "get_next_as_optional"):
        wrap(home, name, measured, Layer.ROWS)
    several = module("tensorflow.python.distribute.input_lib").DistributedIteratorBase
    for name in ("get_next", "get_next_as_optional"):
        wrap(several, name, measured, Layer.ROWS)
    spent.fetching = lambda: float(waited().numpy()) if waited.cache_info().currsize else 0.0
