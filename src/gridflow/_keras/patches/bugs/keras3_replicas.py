"""The patches for Keras 3 that concern gradients of several replicas."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src import backend, ops
from keras.src.backend.tensorflow import optimizer as optimizers
from keras.src.losses import loss as losses

from gridflow._keras.patches.bugs import keras3_losses, own_steps, probing, shares
from gridflow._keras.patches.bugs.tensorflow_shares import part_of, sum_gradients
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import trainer as trainer_class
from gridflow._keras.patches.registry import Patch
from gridflow._keras.servers.steps import refuse_asynchronous
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class _Summed(threading.local):
    """Whether the gradients of this replica's thread are already summed over all replicas."""

    #: When the optimizer updates variables.
    now = False
    #: When they are passed to the optimizer.
    before = False


_summed = _Summed()
TRAINER: Final = trainer_class()


# --- what is done with gradients before they are summed over the replicas ----------------------


class _ProbeOptimizer(optimizers.TFOptimizer):  # type: ignore[misc]
    """Records in which order gradients are clipped and summed; updates nothing."""

    gradient_accumulation_steps = weight_decay = use_ema = None
    learning_rate = 1.0

    def __init__(self) -> None:
        self.__dict__.update(asked=[], _distribution_strategy=tf.distribute.get_strategy())

    def _clip_gradients(self, grads: Any) -> Any:
        self.asked.append("clip")
        return grads

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        self.asked.append("sum")
        return grads_and_vars

    def _apply_weight_decay(self, variables: Any) -> None:
        del variables

    def _distributed_tf_update_step(self, *_: Any) -> None:
        pass


def _gradients_are_summed_last() -> bool:
    with probing.in_replica():
        optimizer = _ProbeOptimizer()
        gradient = tf.compat.v1.placeholder(tf.float32, [1])
        optimizer._backend_apply_gradients([gradient], [gradient])
        return bool(optimizer.asked.index("clip") < optimizer.asked.index("sum"))


def _patch_gradients() -> None:
    def apply_gradients(
        original: Any, self: Any, grads: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
            original(self, grads, variables)
            return
        natives = [native_of(each) for each in variables]
        if isinstance(tf.distribute.get_strategy(), _ASYNCHRONOUS):
            refuse_asynchronous(self)
        if not _summed.before:
            grads = sums_of(self, grads, natives)
        if self.gradient_accumulation_steps:
            _accumulate(self, grads, variables, natives)
        else:
            grads = self._clip_gradients(grads)
            self._apply_weight_decay(variables)
            # An optimizer may do more than update variables here, as Nadam does.
            with knowing(now=True):
                self._backend_update_step(grads, variables, self.learning_rate)
        if self.use_ema:
            _move_averages(self)

    def update_step(
        original: Any,
        self: Any,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any],
        learning_rate: Any,
    ) -> None:
        if not _summed.now:
            original(self, grads, trainable_variables, learning_rate)
            return
        on_each_device(
            self._distributed_tf_update_step,
            self._distribution_strategy,
            list(zip(grads, map(native_of, trainable_variables), strict=True)),
            learning_rate,
        )

    wrap(optimizers.TFOptimizer, "_backend_apply_gradients", apply_gradients, Layer.BUG)
    wrap(optimizers.TFOptimizer, "_backend_update_step", update_step, Layer.BUG)

    def built_apply(
        apply: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> None:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built and tf.distribute.has_strategy():
                # In a graph, variables of several replicas can't be initialised.
                with tf.init_scope(), backend.name_scope(self.name, caller=self):
                    self.build(trainable_variables)
        apply(self, grads, trainable_variables)

    wrap(optimizers.TFOptimizer, "apply", built_apply, Layer.BUG)


_ASYNCHRONOUS: Final = tf.distribute.experimental.ParameterServerStrategy
on_each_device = tf.__internal__.distribute.interim.maybe_merge_call


def native_of(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras variable."""
    return variable.value if isinstance(variable, backend.Variable) else variable


@contextlib.contextmanager
def knowing(**summed: bool) -> Iterator[None]:
    """Set the state in `_Summed` for this replica's thread, in a block."""
    outer = {name: getattr(_summed, name) for name in summed}
    vars(_summed).update(summed)
    try:
        yield
    finally:
        vars(_summed).update(outer)


def sums_of(optimizer: Any, grads: Sequence[Any], natives: Sequence[Any]) -> list[Any]:
    """Return the gradients of the whole batch."""
    pairs = list(zip(grads, natives, strict=True))
    return [each for each, _ in sum_gradients(optimizer._all_reduce_sum_gradients, pairs)]


def _accumulate(
    self: Any, grads: Sequence[Any], variables: Sequence[Any], natives: Sequence[Any]
) -> None:
    """Accumulate gradients, or update: the choice is made on each device."""
    own = type(self)._backend_update_step
    if own is not optimizers.TFOptimizer._backend_update_step:
        raise InvalidArgument(
            f"{type(self).__name__} with gradient_accumulation_steps isn't supported under a "
            "distribution strategy, because its steps do more than update variables. Use another "
            "optimizer (Adam), or a larger batch_size instead."
        )
    steps = self.gradient_accumulation_steps
    is_update = (self._iterations + 1) % steps == 0
    sums = [self._accumulated_gradients[self._get_variable_index(each)] for each in variables]
    means = [ops.add(each, total) / steps for each, total in zip(grads, sums, strict=True)]
    means = self._clip_gradients(means)
    rate = tf.convert_to_tensor(self.learning_rate)

    def one(variable: Any, gradient: Any, total: Any, mean: Any, now: Any, rate: Any) -> None:
        def update() -> Any:
            if self.weight_decay is not None and self._use_weight_decay(variable):
                decay = tf.cast(self.weight_decay, variable.dtype)
                variable.assign_sub(variable * decay * tf.cast(rate, variable.dtype))
            self.update_step(mean, variable, rate)
            total.assign(tf.zeros_like(total))
            return tf.constant(0)

        def add() -> Any:
            total.assign(ops.add(gradient, total))
            return tf.constant(0)

        tf.cond(now, update, add)

    def all_of_them(strategy: Any, *given: Any) -> None:
        grads, sums, means, now, rate = given
        for native, *parts in zip(natives, grads, sums, means, strict=True):
            strategy.extended.update(native, one, args=(*parts, now, rate), group=False)

    on_each_device(
        all_of_them,
        self._distribution_strategy,
        grads,
        [each.value for each in sums],
        means,
        is_update,
        rate,
    )


def _move_averages(self: Any) -> None:
    pairs = [
        (native_of(variable), native_of(average))
        for variable, average in zip(
            self._trainable_variables, self._model_variables_moving_average, strict=True
        )
        if average is not None
    ]
    every = self.ema_overwrite_frequency
    # Counts updates: with accumulated gradients, several steps make one.
    is_first = tf.equal(self.iterations, 0)
    overwrites = (self.iterations + 1) % every == 0 if every else tf.constant(False)

    def one(variable: Any, average: Any, is_first: Any, overwrites: Any) -> None:
        momentum = tf.where(is_first, 0.0, self.ema_momentum)
        momentum = tf.cast(momentum, variable.dtype)
        average.assign(momentum * average + (1 - momentum) * variable)
        if every:
            variable.assign(tf.where(overwrites, average, variable))

    def all_of_them(strategy: Any, averages: Sequence[Any], *more: Any) -> None:
        for (native, _), average in zip(pairs, averages, strict=True):
            strategy.extended.update(native, one, args=(average, *more), group=False)

    on_each_device(
        all_of_them,
        self._distribution_strategy,
        [average for _, average in pairs],
        is_first,
        overwrites,
    )


# --- steps and losses of the user's ------------------------------------------------------------


class _OwnModel:
    """What Keras asks of a model with a custom step before it trains."""

    def __init__(self) -> None:
        vars(self).update(vars(probing.model()))

    def train_step(self, data: Any) -> dict[str, Any]:
        """Compute one of Keras's losses, next to which there may be custom ones."""
        return {"loss": losses.reduce_values(data, reduction="sum_over_batch_size")}


def _losses_are_scaled_in_own_steps() -> bool:
    """Return whether Keras scales its losses there, for gradients that are added up.

    Custom losses aren't scaled, but their gradients are added up, too.
    """
    with probing.in_replica() as graph:
        model = _OwnModel()
        values = tf.compat.v1.placeholder(tf.float32, [2])
        TRAINER._make_function(model, model.train_step)([values])
        return probing.multiplies_by(graph, 1 / probing.REPLICAS)


def _patch_own_steps() -> None:
    def as_is_in_own_steps(original: Any, value: Any) -> Any:
        return value if own_steps.is_active() else original(value)

    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        wrap(losses, name, as_is_in_own_steps, Layer.BUG)

    def reduce_values(
        reduce: Any, values: Any, sample_weight: Any = None, reduction: Any = None
    ) -> Any:
        value = reduce(values, sample_weight, reduction)
        if reduction == "sum" and own_steps.is_active() and shares.current() is None:
            # A sum remains a sum if gradients are averaged.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            value = ops.multiply(value, ops.cast(replicas, value.dtype))
        elif reduction not in {None, "none", "sum"} and tuple(values.shape) == ():
            # A loss function that returns the mean itself, which Keras leaves unchanged.
            value = losses.scale_loss_for_distribution(value)
        return value

    wrap(losses, "reduce_values", reduce_values, Layer.BUG)

    def make_function(make: Any, self: Any, step_function: Callable[[Any], Any]) -> Any:
        return make(self, own_steps.within(self, step_function, part_of))

    wrap(TRAINER, "_make_function", make_function, Layer.BUG)


# --- what a loss divides by --------------------------------------------------------------------


class _WithSharedLosses(_OwnModel):
    """A model with losses that divide by a mask or by weights."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Compute the losses."""
        keras3_losses.make_those_that_ask(data, tf.ones_like(data))
        return {}


def _parts_divide_by_their_own() -> bool:
    """Return whether a replica's losses divide by the counts of its own part of a batch."""
    with probing.in_replica() as graph:
        model = _WithSharedLosses()
        values = tf.compat.v1.placeholder(tf.float32, [2])
        TRAINER._make_function(model, model.train_step)([values])
        return probing.times_asked(graph) < keras3_losses.ASKING


PATCHES: Final = (
    Patch(
        "gradients",
        "keras",
        "gradients are clipped, accumulated and averaged before they are summed over the replicas: "
        "clipnorm and clipvalue clip each replica's part, gradient_accumulation_steps and "
        "ema_overwrite_frequency fail (merge_call)",
        _gradients_are_summed_last,
        _patch_gradients,
    ),
    Patch(
        "own steps",
        "keras",
        "with N replicas, gradients of a custom train_step, compute_loss or scalar loss are N "
        "times too large",
        _losses_are_scaled_in_own_steps,
        _patch_own_steps,
    ),
    Patch(
        "masked losses",
        "keras",
        "a loss divides by the mask, or by the weights, of one replica's part of a batch",
        _parts_divide_by_their_own,
        keras3_losses.install,
    ),
)
