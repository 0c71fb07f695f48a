"""Predictions of all ranks, which Keras gathers only under TensorFlow's own strategies."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridflow._keras import group
from gridflow._keras.patches.methods import Layer, wrap


def gather(trainer: Any) -> None:
    """Make the models of a flavour return the predictions of all ranks, by rank, on each.

    Parameters
    ----------
    trainer : module
        With ``reduce_per_replica``, which they call in each step.
    """

    def reduce_per_replica(original: Any, values: Any, strategy: Any, reduction: str) -> Any:
        if reduction != "concat" or not group.is_of(strategy):
            return original(values, strategy, reduction)
        return tf.nest.map_structure(lambda each: strategy.gather(each, axis=0), values)

    wrap(trainer, "reduce_per_replica", reduce_per_replica, Layer.BUG)
