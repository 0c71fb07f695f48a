"""Predictions of all ranks, in the order of the rows, from files, too.

For both flavours: hooks of tf_keras import no module that imports Keras 3, whose import would load
the hooks of that one first.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridflow._keras import group
from gridflow._keras.patches.methods import Layer, wrap


def of_all_ranks(cls: Any, steps: Any) -> None:
    """Make the models of a flavour return the predictions of all ranks on each, in order.

    `cls`: The model class, with ``predict``.
    `steps`: The module whose ``reduce_per_replica`` they call in each step.
    """

    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction != "concat" or not group.is_of(strategy):
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda each: strategy.gather(each, axis=0), values)

    def predict(original: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if group.is_of(self.distribute_strategy) and isinstance(x, tf.data.Dataset):
            x = _with_order(x)
        return original(self, x, *args, **kwargs)

    wrap(steps, "reduce_per_replica", reduce_per_replica, Layer.BUG)
    wrap(cls, "predict", predict, Layer.BUG)


def _with_order(dataset: Any) -> Any:
    """Return a dataset of which each rank takes its part of every batch, not separate files."""
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in {policies.AUTO, policies.FILE}:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)
