"""The patches for tf_keras that concern gradients of several replicas."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tf_keras.src import losses
from tf_keras.src.engine import training
from tf_keras.src.optimizers import utils as optimizer_utils
from tf_keras.src.utils import losses_utils, tf_utils

from gridflow._keras.patches.bugs import own_steps, probing, shares
from gridflow._keras.patches.bugs.tensorflow_shares import part_of, sum_gradients
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

#: A step that uses this function handles replicas itself.
_SCALE: Final = "scale_loss_for_distribution"


class _OwnModel:
    """What tf_keras asks of a model with a custom step before it trains."""

    train_function = _steps_per_execution = _cluster_coordinator = None
    jit_compile = autotune_steps_per_execution = False
    run_eagerly = True
    distribute_reduction_method = "auto"

    def __init__(self) -> None:
        self.distribute_strategy = probing.strategy(1)

    def train_step(self, data: Any) -> None:
        """Compute one of tf_keras's losses, next to which there may be custom ones."""
        getattr(losses_utils, _SCALE)(data)
        raise probing.StepMadeError


def _losses_are_scaled_in_own_steps() -> bool:
    """Return whether tf_keras scales its losses there, for gradients that are added up.

    Custom losses aren't scaled, but their gradients are added up, too.
    """
    with probing.in_replica() as graph:
        model: Any = _OwnModel()
        training.Model.make_train_function(model)
        with contextlib.suppress(probing.StepMadeError):
            model.train_function(probing.Batches())
        return probing.multiplies_by(graph, 1 / probing.REPLICAS)


def _patch_own_steps() -> None:
    def scale_loss_for_distribution(scale_loss: Any, value: Any) -> Any:
        return value if own_steps.is_active() else scale_loss(value)

    def all_reduce_sum_gradients(add_up: Any, grads_and_vars: Any) -> Any:
        return sum_gradients(add_up, grads_and_vars)

    def get_reduction(reduction_of: Any, self: Any) -> Any:
        # The mean of each replica's part is right there, but tf_keras doesn't know.
        if own_steps.is_active() and self.reduction == losses_utils.ReductionV2.AUTO:
            return losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE
        if own_steps.is_active():
            return self.reduction
        return reduction_of(self)

    name = "scale_loss_for_distribution"
    wrap(losses_utils, name, scale_loss_for_distribution, Layer.BUG)
    wrap(optimizer_utils, "all_reduce_sum_gradients", all_reduce_sum_gradients, Layer.BUG)
    wrap(losses.Loss, "_get_reduction", get_reduction, Layer.BUG)
    for kind in ("train", "test"):
        _wrap_making(kind)


def _wrap_making(kind: str) -> None:
    name, step = f"make_{kind}_function", f"{kind}_step"

    def make_function(make: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        plain = getattr(self, step)
        own = own_steps.within(self, plain, part_of)
        if own is not plain:
            # Bypasses tf_keras's __setattr__, which would track it as a part of the model.
            vars(self)[step] = own
        return make(self, *args, **kwargs)

    wrap(training.Model, name, make_function, Layer.BUG)


# --- train_on_batch and test_on_batch: what the workers found is added up ------------------------


class _OneBatch:
    """What tf_keras asks of a model with several replicas to test on a batch; its loss is 1."""

    metrics_names: Final = ("loss",)
    distribute_strategy = SimpleNamespace(
        num_replicas_in_sync=2,
        scope=contextlib.nullcontext,
        experimental_distribute_dataset=lambda dataset: [dataset],
    )
    _assert_compile_was_called = _check_call_args = reset_metrics = lambda *_: None

    def make_test_function(self) -> Any:
        """Return a function whose logs are sums over the replicas."""
        return lambda _: {"loss": 2.0}

    def get_metrics_result(self) -> dict[str, float]:
        """Return the results of the metrics over all replicas."""
        return {"loss": 1.0}

    _validate_and_get_metrics_result = training.Model._validate_and_get_metrics_result


def _logs_of_a_batch_are_added_up() -> bool:
    with tf.Graph().as_default():  # the batch becomes a tensor
        batch = np.zeros((1, 1))
        logs = training.Model.test_on_batch(_OneBatch(), batch, return_dict=True)
    return bool(logs["loss"] == _OneBatch().make_test_function()(None)["loss"])


def _patch_logs_of_a_batch() -> None:
    for name in ("train_on_batch", "test_on_batch"):
        _ask_the_metrics(name)


def _ask_the_metrics(name: str) -> None:
    parameters = inspect.signature(getattr(training.Model, name))

    def on_batch(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.distribute_strategy.num_replicas_in_sync == 1:
            return original(self, *args, **kwargs)
        given = parameters.bind(self, *args, **kwargs)
        as_dict = given.arguments.get("return_dict", False)
        given.arguments["return_dict"] = True
        # fit and evaluate do the same at the end.
        logs = self._validate_and_get_metrics_result(original(*given.args, **given.kwargs))
        logs = tf_utils.sync_to_numpy_or_python_type(logs)
        return logs if as_dict else training.flatten_metrics_in_order(logs, self.metrics_names)

    wrap(training.Model, name, on_batch, Layer.BUG)


# --- what a loss divides by --------------------------------------------------------------------


class _MaskedModel(_OwnModel):
    """A model with a loss that divides by a mask."""

    def train_step(self, data: Any) -> None:
        """Compute the loss's weights."""
        losses_utils.apply_valid_mask(data, None, tf.ones_like(data), _MEAN)
        raise probing.StepMadeError


_MEAN: Final = losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE


def _parts_divide_by_their_own() -> bool:
    """Return whether a replica's losses divide by the counts of its own part of a batch."""
    with probing.in_replica() as graph:
        model: Any = _MaskedModel()
        training.Model.make_train_function(model)
        with contextlib.suppress(probing.StepMadeError):
            model.train_function(probing.Batches())
        return probing.times_asked(graph) == 0


def install_dividing() -> None:
    """Make losses divide by the counts of the whole batch."""

    def masked(apply_valid_mask: Any, losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        if mask is None or reduction not in {losses_utils.ReductionV2.AUTO, _MEAN}:
            return apply_valid_mask(losses, sw, mask, reduction)
        part = shares.reachable("A masked loss")
        if part is None:
            return apply_valid_mask(losses, sw, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        entries = tf.cast(tf.size(mask), losses.dtype)
        density = part.density(tf.reduce_sum(mask), entries)
        return losses_utils.apply_mask(losses, sw, mask / tf.cast(density, mask.dtype))

    def reduced(reduce: Any, weighted_losses: Any, reduction: Any = _MEAN) -> Any:
        loss = reduce(weighted_losses, reduction)
        if reduction != losses_utils.ReductionV2.SUM:
            return loss
        part = shares.reachable("A loss that is a sum")
        return loss if part is None else loss * tf.cast(part.times_a_sum(), loss.dtype)

    wrap(losses_utils, "apply_valid_mask", masked, Layer.BUG)
    wrap(losses_utils, "reduce_weighted_loss", reduced, Layer.BUG)


PATCHES: Final = (
    Patch(
        "logs of a batch",
        "tf_keras",
        "train_on_batch and test_on_batch return N times the losses and metrics with N workers",
        _logs_of_a_batch_are_added_up,
        _patch_logs_of_a_batch,
    ),
    Patch(
        "own steps",
        "tf_keras",
        "with N replicas, gradients of a custom train_step or compute_loss are N times too "
        "large, or it is rejected",
        _losses_are_scaled_in_own_steps,
        _patch_own_steps,
    ),
    Patch(
        "masked losses",
        "tf_keras",
        "a loss divides by the mask of one replica's part of a batch",
        _parts_divide_by_their_own,
        install_dividing,
    ),
)
