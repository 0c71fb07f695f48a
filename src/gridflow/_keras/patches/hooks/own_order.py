"""Checks whether several workers read the user's own data in the same order.

The strategy makes each worker read the whole dataset and keep its part of each batch. This is
correct only if all workers have the same order. Arrays are shuffled in the same order on all
workers, anew in each epoch. A ``tf.data`` pipeline is shuffled by the user, so the log mentions a
problem once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import weakref
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import shuffle_op
from tensorflow.python.eager import context

from gridflow._keras import group, runtime
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import inputs_of
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)
_POLICIES: Final = tf.data.experimental.AutoShardPolicy
_FILES: Final = (tf.data.TFRecordDataset, tf.data.TextLineDataset, tf.data.FixedLengthRecordDataset)
_READERS: Final = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset")
_datasets = itertools.count()
_looked_into: weakref.WeakSet[Any] = weakref.WeakSet()


def hook(epochs: Any, of_fit: str, random: Any) -> Hook:
    """Return the hook of a flavour.

    `epochs`: The class that makes datasets of what a model's methods are called with.
    `of_fit`: The argument that it gets from ``fit`` only.
    `random`: The module whose ``shuffle`` Keras calls in a dataset's function.
    """

    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = kwargs.get("distribute_strategy") or tf.distribute.get_strategy()
        if of_fit in kwargs:
            say_what_differs(kwargs.get("x"), strategy)
        with shuffled_alike(strategy, random):
            original(self, *args, **kwargs)

    return Hook("all workers shuffle alike", lambda: wrap(epochs, "__init__", init, Layer.CHECK))


def _is_of_several_workers(strategy: Any) -> bool:
    return group.is_of(strategy) and bool(strategy.num_replicas_in_sync > 1)


def _is_seeded() -> bool:
    return context.global_seed() is not None


@contextlib.contextmanager
def shuffled_alike(strategy: Any, random: Any) -> Iterator[None]:
    """Shuffle arrays in the same order on all workers, in a block where Keras makes a dataset.

    It uses counted numbers: a seeded operation would start over in each epoch.

    `strategy`: The strategy that trains the model.
    `random`: The module whose ``shuffle`` Keras calls in a dataset's function.
    """
    if not _is_of_several_workers(strategy) or _is_seeded():
        yield
        return
    present = runtime.present()
    seed = (present.training.seed if present else None) or 0
    first = zlib.crc32(f"{seed} {next(_datasets)}".encode())
    counter = itertools.count()
    original = random.shuffle

    def numbers() -> Any:
        return np.array([first, next(counter)], dtype=np.int64)

    def shuffle(value: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():  # called by the user, not by Keras
            return original(value, *args, **kwargs)
        drawn = tf.ensure_shape(tf.numpy_function(numbers, [], tf.int64), [2])
        return tf.random.experimental.stateless_shuffle(value, drawn)

    random.shuffle = shuffle
    try:
        yield
    finally:
        random.shuffle = original


def say_what_differs(data: Any, strategy: Any) -> None:
    """Log once if a fit's batches have other rows than those of a single process.

    `data`: As passed to ``fit``.
    `strategy`: The strategy that trains the model.
    """
    if not isinstance(data, tf.data.Dataset) or not _is_of_several_workers(strategy):
        return
    if data in _looked_into:  # graphs may be large, and there may be many fits
        return
    _looked_into.add(data)
    policy = data.options().experimental_distribute.auto_shard_policy
    if policy == _POLICIES.OFF:  # each worker has its own data, as with ctx.dataset
        return
    parts = list(inputs_of(data))
    if not _is_seeded() and any(map(_is_shuffled_by_chance, parts)):
        _say(
            "each worker shuffles this dataset in a different order, because shuffle(…) has no "
            "seed=: in an epoch some rows come twice, and others not at all. Use shuffle(…, "
            "seed=…), or TensorflowDistributor(seed=…)"
        )
    if policy in {_POLICIES.AUTO, _POLICIES.FILE} and any(map(_reads_files, parts)):
        _say(
            "each worker reads different files of this dataset, if there are enough: each row "
            "comes once, but batches differ from those of a single process. For the same batches, "
            "set options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA"
        )


def _is_shuffled_by_chance(data: Any) -> bool:
    return isinstance(data, shuffle_op._ShuffleDataset) and not any(
        tf.get_static_value(seed) for seed in (data._seed, data._seed2)
    )


def _reads_files(data: Any) -> bool:
    if isinstance(data, _FILES):
        return True
    for each in data._functions():
        graph = each.function.graph.as_graph_def()
        nodes = [graph.node, *(inner.node_def for inner in graph.library.function)]
        if any(node.op.startswith(_READERS) for node in itertools.chain(*nodes)):
            return True
    return False


@functools.cache
def _say(what: str) -> None:
    _log.warning("%s (docs/distribution.md).", what)
