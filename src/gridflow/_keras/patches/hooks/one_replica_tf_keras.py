"""What tf_keras needs under gridflow's strategy (`gridflow._keras.group`)."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any, Final

import tensorflow as tf
from tf_keras.src import losses
from tf_keras.src.distribute import distributed_file_utils
from tf_keras.src.engine import training
from tf_keras.src.mixed_precision import loss_scale_optimizer as scaling
from tf_keras.src.optimizers import utils as optimizer_utils
from tf_keras.src.utils import losses_utils, tf_utils

from gridflow._keras import group
from gridflow._keras.group.strategy import current
from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.hooks import predictions
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

_KINDS: Final = losses_utils.ReductionV2


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


def _divide_by_all() -> None:
    """Make losses divide by the counts of the whole batch."""

    def masked(apply_valid_mask: Any, losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        if mask is None or reduction not in {_KINDS.AUTO, _KINDS.SUM_OVER_BATCH_SIZE}:
            return apply_valid_mask(losses, sw, mask, reduction)
        part = shares.reachable("A masked loss")
        if part is None:
            return apply_valid_mask(losses, sw, mask, reduction)
        mask = tf.cast(mask, losses.dtype)
        entries = tf.cast(tf.size(mask), losses.dtype)
        density = part.density(tf.reduce_sum(mask), entries)
        return losses_utils.apply_mask(losses, sw, mask / tf.cast(density, mask.dtype))

    def reduced(
        reduce: Any, weighted_losses: Any, reduction: Any = _KINDS.SUM_OVER_BATCH_SIZE
    ) -> Any:
        loss = reduce(weighted_losses, reduction)
        if reduction != _KINDS.SUM:
            return loss
        part = shares.reachable("A loss that is a sum")
        return loss if part is None else loss * tf.cast(part.times_a_sum(), loss.dtype)

    wrap(losses_utils, "apply_valid_mask", masked, Layer.BUG)
    wrap(losses_utils, "reduce_weighted_loss", reduced, Layer.BUG)


def _know_reductions() -> None:
    """tf_keras doesn't know that the mean over a rank's rows is right in a step of one's own."""

    def get_reduction(original: Any, self: Any) -> Any:
        found = current()
        if found is None or found.step is None:
            return original(self)
        if self.reduction == _KINDS.AUTO:
            return _KINDS.SUM_OVER_BATCH_SIZE
        return self.reduction

    wrap(losses.Loss, "_get_reduction", get_reduction, Layer.BUG)


def _add_up_logs() -> None:
    """Return those of all replicas from ``train_on_batch`` and ``test_on_batch``.

    A step has those of its rank; with TensorFlow's own strategies they would be added up.
    """
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


def _write_aside() -> None:
    """tf_keras lets only the chief write to a path, but only under TensorFlow's own strategy."""

    def of_rank(original: Any, path: Any, strategy: Any) -> Any:
        given = tf.distribute.get_strategy() if strategy is None else strategy
        if not group.is_of(given):
            return original(path, strategy)
        facts = SimpleNamespace(
            _in_multi_worker_mode=lambda: given.extended.exchange.size > 1,
            should_checkpoint=given.extended.should_checkpoint,
            _task_id=given.extended.exchange.rank,
        )
        return original(path, SimpleNamespace(extended=facts))

    for name in ("write_dirpath", "remove_temp_dirpath"):
        wrap(distributed_file_utils, name, of_rank, Layer.BUG)


def _predict_for_all() -> None:
    predictions.of_all_ranks(training.Model, training)


HOOKS: Final = tuple(
    Hook(name, install)
    for name, install in {
        "gradients are weighted by rows": _average_gradients,
        "losses of float16 are scaled as in one process": _scale_parts,
        "losses divide by what counts on all ranks": _divide_by_all,
        "losses are means in steps of one's own": _know_reductions,
        "logs of a batch are those of all replicas": _add_up_logs,
        "each rank has the predictions of all rows": _predict_for_all,
        "ranks may write to one path": _write_aside,
    }.items()
)
