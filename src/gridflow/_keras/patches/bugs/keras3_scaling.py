"""The patch for Keras 3's loss scaling: all replicas must skip the same step."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src import ops
from keras.src.optimizers import loss_scale_optimizer as scaling

from gridflow._keras.patches.bugs import probing
from gridflow._keras.patches.bugs.keras3_replicas import knowing, native_of, on_each_device, sums_of
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence


def _parts_are_looked_at() -> bool:
    """Return whether a replica checks its own gradients before the sum over all.

    The replicas then skip different steps: some update, or wait in a collective operation, without
    the others.
    """
    asked = []

    class Optimizer(scaling.LossScaleOptimizer):  # type: ignore[misc]
        def check_finite(self, grads: Any) -> Any:
            del grads
            asked.append("finite")
            return True

        def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
            asked.append("sum")
            return grads_and_vars

        def _stateful_handle_finite_grads(self, *_: Any) -> None:
            pass

    with probing.in_replica():
        optimizer = object.__new__(Optimizer)
        gradient = tf.compat.v1.placeholder(tf.float32, [1])
        optimizer._tf_apply([gradient], [gradient])
    return asked != ["sum", "finite"]


def _patch_skipping() -> None:
    def apply(
        original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        if (
            tf.distribute.in_cross_replica_context()
            or tf.distribute.get_strategy().num_replicas_in_sync == 1
        ):
            original(self, grads, trainable_variables)
            return
        variables = list(trainable_variables or self._trainable_variables)
        # If one part isn't finite, neither is the sum: all replicas skip the same step.
        sums = sums_of(self, list(grads), [native_of(each) for each in variables])
        finite = self.check_finite(sums)

        def update(sums: Sequence[Any], variables: Sequence[Any]) -> None:
            # Each replica runs in its own thread, which doesn't have this thread's state.
            with knowing(before=True):
                self._stateful_handle_finite_grads(sums, variables)

        def choose(strategy: Any, finite: Any, *given: Any) -> None:
            if tf.distribute.in_cross_replica_context():
                (finite, *_) = strategy.experimental_local_results(finite)
                call = functools.partial(
                    strategy.extended.call_for_each_replica, update, args=given
                )
            else:
                call = functools.partial(update, *given)
            ops.cond(finite, call, self._stateful_handle_non_finite_grads)

        # A branch with a collective operation must be taken by all replicas together.
        on_each_device(choose, tf.distribute.get_strategy(), finite, sums, variables)

    wrap(scaling.LossScaleOptimizer, "_tf_apply", apply, Layer.BUG)


PATCHES: Final = (
    Patch(
        "loss scaling",
        "keras",
        "each worker checks only its first replica's gradients for finite values: some workers "
        "skip a step that others make, and these hang or get infinite weights",
        _parts_are_looked_at,
        _patch_skipping,
    ),
)
