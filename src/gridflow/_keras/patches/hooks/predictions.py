"""Predictions of all ranks, in the order of the rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridflow._keras import group
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook


def gather(trainer: Any) -> None:
    """Make the models of a flavour return the predictions of all ranks, by rank, on each.

    `trainer`: With ``reduce_per_replica``, which they call in each step.
    """

    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction != "concat" or not group.is_of(strategy):
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda each: strategy.gather(each, axis=0), values)

    wrap(trainer, "reduce_per_replica", reduce_per_replica, Layer.BUG)


def in_order(cls: Any) -> Hook:
    """Return the hook of a flavour's models, for rows from files.

    `cls`: The model class, with ``predict``.
    """

    def predict(original: Any, self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if group.is_of(self.distribute_strategy) and isinstance(x, tf.data.Dataset):
            x = _with_order(x)
        return original(self, x, *args, **kwargs)

    def install() -> None:
        wrap(cls, "predict", predict, Layer.BUG)

    return Hook("what is predicted has the order of its rows, from files, too", install)


def _with_order(dataset: Any) -> Any:
    """Return a dataset of which each rank takes its part of every batch, not separate files."""
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in {policies.AUTO, policies.FILE}:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)
