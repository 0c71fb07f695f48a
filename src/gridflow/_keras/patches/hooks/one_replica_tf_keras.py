"""What tf_keras needs under gridflow's strategy (`gridflow._keras.group`)."""

from __future__ import annotations

from typing import Any, Final

from tf_keras.src.optimizers import utils as optimizer_utils

from gridflow._keras import group
from gridflow._keras.group.strategy import current
from gridflow._keras.patches.bugs import tf_keras_replicas
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


HOOKS: Final = (
    Hook("gradients are weighted by rows", _average_gradients, group.is_chosen),
    Hook(
        "losses divide by what counts on all ranks",
        tf_keras_replicas.install_dividing,
        group.is_chosen,
    ),
)
