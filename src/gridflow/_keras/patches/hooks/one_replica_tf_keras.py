"""What tf_keras needs under gridflow's strategy (`gridflow._keras.group`)."""

from __future__ import annotations

import functools
from typing import Any, Final

import tensorflow as tf
from tf_keras.src.engine import training
from tf_keras.src.mixed_precision import loss_scale_optimizer as scaling
from tf_keras.src.optimizers import utils as optimizer_utils

from gridflow._keras import group
from gridflow._keras.group.strategy import current
from gridflow._keras.patches.bugs import tf_keras_replicas
from gridflow._keras.patches.hooks import predictions
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook


def _average_gradients() -> None:
    """Weight what an optimizer sums by rows."""

    def all_reduce_sum_gradients(original: Any, grads_and_vars: Any) -> Any:
        found = current()
        if found is None:
            return original(grads_and_vars)
        pairs = list(grads_and_vars)
        means = found.mean_gradients([grad for grad, _ in pairs])
        return [(grad, variable) for grad, (_, variable) in zip(means, pairs, strict=True)]

    wrap(optimizer_utils, "all_reduce_sum_gradients", all_reduce_sum_gradients, Layer.BUG)


def _scale_parts() -> None:
    """Few rows have larger gradients than many; float16 must overflow where one process does."""

    def get_scaled_loss(original: Any, self: Any, loss: Any) -> Any:
        found = current()
        if found is None or found.step is None:
            return original(self, loss)
        size = found.exchange.size
        if callable(loss):
            return original(self, lambda: loss() / size)
        return original(self, loss / size)

    def get_unscaled_gradients(original: Any, self: Any, grads: Any) -> Any:
        found, plain = current(), original(self, grads)
        if found is None or found.step is None:
            return plain
        size = float(found.exchange.size)
        return [None if each is None else tf.math.scalar_mul(size, each) for each in plain]

    for kind in (scaling.LossScaleOptimizer, scaling.LossScaleOptimizerV3):
        wrap(kind, "get_scaled_loss", get_scaled_loss, Layer.BUG)
        wrap(kind, "get_unscaled_gradients", get_unscaled_gradients, Layer.BUG)


HOOKS: Final = (
    Hook("losses of float16 are scaled as in one process", _scale_parts, group.is_chosen),
    Hook(
        "each rank has the predictions of all rows",
        functools.partial(predictions.gather, training),
        group.is_chosen,
    ),
    Hook("gradients are weighted by rows", _average_gradients, group.is_chosen),
    Hook(
        "losses divide by what counts on all ranks",
        tf_keras_replicas.install_dividing,
        group.is_chosen,
    ),
)
