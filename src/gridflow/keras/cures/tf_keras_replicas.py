"""The cures for tf_keras that have to do with gradients of several replicas."""

from __future__ import annotations

import functools
from typing import Any, Final

import tensorflow as tf
from tf_keras.src import losses
from tf_keras.src.engine import data_adapter, training
from tf_keras.src.optimizers import utils as optimizer_utils
from tf_keras.src.utils import losses_utils

from gridflow.keras.cures import own_steps
from gridflow.keras.cures.datasets import check_scope
from gridflow.keras.fixes import Fix
from gridflow.keras.hooks.compiling import check_xla


def _own_losses_are_not_scaled() -> bool:
    return not hasattr(losses_utils.scale_loss_for_distribution, "__wrapped__")


def _cure_own_steps() -> None:
    scale_loss = losses_utils.scale_loss_for_distribution
    add_up = optimizer_utils.all_reduce_sum_gradients
    reduction_of = losses.Loss._get_reduction

    @functools.wraps(scale_loss)
    def scale_loss_for_distribution(value: Any) -> Any:
        return value if own_steps.is_active() else scale_loss(value)

    def all_reduce_sum_gradients(grads_and_vars: Any) -> Any:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if own_steps.is_active() and replicas > 1:
            grads_and_vars = [
                (None if grad is None else tf.math.scalar_mul(1.0 / replicas, grad), variable)
                for grad, variable in grads_and_vars
            ]
        return add_up(grads_and_vars)

    def _get_reduction(self: Any) -> Any:
        # A mean of each replica's part is right there, which tf_keras can't know.
        if own_steps.is_active() and self.reduction == losses_utils.ReductionV2.AUTO:
            return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE
        if own_steps.is_active():
            return self.reduction
        return reduction_of(self)

    losses_utils.scale_loss_for_distribution = scale_loss_for_distribution
    optimizer_utils.all_reduce_sum_gradients = all_reduce_sum_gradients
    losses.Loss._get_reduction = _get_reduction
    for kind in ("train", "test"):
        _wrap_making(kind)


def _wrap_making(kind: str) -> None:
    name, step = f"make_{kind}_function", f"{kind}_step"
    make = getattr(training.Model, name)

    @functools.wraps(make)
    def make_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = getattr(self, step)
        own = own_steps.within(self, plain)
        if own is not plain:
            # Past tf_keras's own __setattr__, which would track it as a part of the model.
            vars(self)[step] = own
        return make(self, *args, **kwargs)

    setattr(training.Model, name, make_function)


# --- what fails later, without a hint ----------------------------------------------------------


def _nothing_is_checked() -> bool:
    return not hasattr(training.Model.compile, "_gridflow")


def _cure_checks() -> None:
    compile_, init = training.Model.compile, data_adapter.DataHandler.__init__

    @functools.wraps(compile_)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        result = compile_(self, *args, **kwargs)
        if kwargs.get("jit_compile"):
            check_xla(self.distribute_strategy)
        return result

    @functools.wraps(init)
    def __init__(self: Any, x: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        check_scope(x, tf.distribute.get_strategy())
        init(self, x, *args, **kwargs)

    compile._gridflow = True  # type: ignore[attr-defined]
    training.Model.compile = compile
    data_adapter.DataHandler.__init__ = __init__


FIXES: Final = (
    Fix(
        "checks",
        "tf_keras",
        "jit_compile with several replicas on CPUs, and models made outside of the scope, fail in "
        "the first step without a hint",
        _nothing_is_checked,
        _cure_checks,
    ),
    Fix(
        "own steps",
        "tf_keras",
        "a train_step or compute_loss of the user's gets gradients that are N times too large with "
        "N replicas, or is refused",
        _own_losses_are_not_scaled,
        _cure_own_steps,
    ),
)
