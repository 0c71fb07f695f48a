"""Keeps moving statistics the same on all replicas.

A plain BatchNormalization keeps a moving mean and variance per replica, computed from that
replica's rows. So workers of Keras 3 end with different models. Workers of tf_keras, which averages
these variables when they are read outside a step, validate with different models. Therefore they
are averaged at the end of every epoch, before each validation, for a checkpoint and when training
ends, whatever a fit's callbacks are (`gridflow._keras.patches.hooks.fits`). A moving average is
linear in its inputs, so the time of averaging doesn't change the result.

What else a layer of Keras 3 assigns in ``call`` is averaged with them, or, if it was declared with
``aggregation="sum"``, changed by what all ranks have changed it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._keras.patches import private_parts, registry
from gridflow._keras.results import flavour_of, is_tensorflow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_AVERAGING: Final = "_gridflow_averaging"
#: The attribute of a model with the values that its ranks last had in common, of what is summed.
_COMMON: Final = "_gridflow_common"
#: The attribute of a model whose ranks make steps alone: `hooks.local_steps.Averages`.
AVERAGES: Final = "_gridflow_averages"


def diverging(model: Any) -> list[Any]:
    """Return the variables of a model that may differ between replicas, and are averaged.

    In Keras 3 these are the non-trainable floating-point weights of layers that aren't frozen,
    including submodels: what a layer updates itself when it is called. In tf_keras they are those
    declared to be averaged on read. Trainable weights get the same updates everywhere.
    """
    if flavour_of(model) == "tf_keras":
        import tensorflow as tf

        return [
            weight
            for weight in model.non_trainable_weights
            if weight.dtype.is_floating
            and weight.synchronization == tf.VariableSynchronization.ON_READ
            and weight.aggregation == tf.VariableAggregation.MEAN
        ]
    return [each for each in _floats(model) if each.aggregation != "sum"]


def _summed(model: Any) -> list[Any]:
    return [each for each in _floats(model) if each.aggregation == "sum"]


def _floats(model: Any) -> list[Any]:
    return [
        variable
        for variable in of_layers(model)
        if "float" in str(variable.dtype) and variable.synchronization in {"auto", "on_write"}
    ]


def of_layers(model: Any) -> list[Any]:
    """Return what the layers of a model of Keras 3 may assign in ``call``; empty for tf_keras."""
    if flavour_of(model) == "tf_keras":
        return []
    return [
        variable
        for layer in private_parts.layers(model)
        if layer.trainable
        for variable in private_parts.own_statistics(layer)
    ]


def of_rank(model: Any) -> list[tuple[Any, np.ndarray | None]]:
    """Return what this rank has changed by itself since `synchronise`.

    Returns: Variables that are averaged, with None; and those that are summed, with the values that
        the ranks last had in common.
    """
    return [*((each, None) for each in diverging(model)), *model.__dict__.get(_COMMON, [])]


def begin(model: Any) -> None:
    """Note what all ranks start a fit with."""
    common = [(each, np.array(each)) for each in _summed(model)]
    object.__setattr__(model, _COMMON, common)  # past Keras's __setattr__, which would track it


def _add_up(model: Any, total: Callable[[list[Any]], Sequence[Any]]) -> int:
    """Change what is summed by the changes of all ranks; return how many variables those are."""
    found = model.__dict__.get(_COMMON, [])
    changes = [np.array(variable) - before for variable, before in found]
    for (variable, before), change in zip(found, total(changes) if found else [], strict=True):
        variable.assign(before + np.array(change, before.dtype))
    begin(model)
    return len(found)


def synchronise(model: Any) -> int:
    """Average the moving statistics of a model over all replicas; all of it after local steps.

    All ranks must call it. With one replica, or nothing to average, it does nothing.

    Returns: Number of averaged variables.
    """
    if not is_tensorflow(model):
        return _synchronise_ranks(model)
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return 0
    averages = model.__dict__.get(AVERAGES)
    if averages is not None:
        averages.average()
    from gridflow._keras.group.strategy import Extended

    number = 0
    if isinstance(strategy.extended, Extended):
        number = _add_up(model, lambda changes: strategy.extended.reduced(False, changes))
    found = diverging(model)
    if found:
        with strategy.scope():
            _averaging(model, found)()
    return number + len(found)


def shares(model: Any, metrics: list[Any]) -> list[np.ndarray]:
    """Return each rank's equal share of the state of metrics, if each rank has its own state.

    This is the case where metrics are summed at the end of an epoch. All ranks must
    call it. Empty on other backends, where the state is the same on all ranks.
    """
    average = None if is_tensorflow(model) else registry.hooks_of("keras").averaging()
    if not metrics or average is None:
        return []
    values = [variable.value.detach() for variable in metrics]
    return [np.array(mean.cpu()) for mean in average(values)]


def _synchronise_ranks(model: Any) -> int:
    hooks = registry.hooks_of("keras")
    average = hooks.averaging()
    if average is None:
        return 0
    hooks.share_random_states()
    number = _add_up(model, hooks.sums)
    found = diverging(model)
    if found:
        means = average([variable.value for variable in found])
        for variable, mean in zip(found, means, strict=True):
            variable.assign(mean)
    return number + len(found)


def _averaging(model: Any, found: list[Any]) -> Any:
    """Return the traced function for these variables; tracing takes longer than averaging."""
    known = model.__dict__.get(_AVERAGING)
    if known is not None and [id(v) for v in known[0]] == [id(v) for v in found]:
        return known[1]
    import tensorflow as tf

    sizes = [int(np.prod(variable.shape)) for variable in found]

    def average() -> None:
        # One collective operation for all variables. The concatenation is an operation on this
        # replica's device, which the all-reduce needs; a variable's value has no device.
        values = [tf.cast(tf.reshape(v, [-1]), tf.float32) for v in found]
        flat = tf.concat([*values, tf.zeros([1])], axis=0)
        replica = tf.distribute.get_replica_context()
        means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, flat)[:-1]
        for variable, mean in zip(found, tf.split(means, sizes), strict=True):
            variable.assign(tf.cast(tf.reshape(mean, variable.shape), variable.dtype))

    function = tf.function(
        functools.partial(model.distribute_strategy.run, average), autograph=False
    )
    # Bypasses Keras's __setattr__, which would track it as a part of the model.
    object.__setattr__(model, _AVERAGING, (found, function))
    return function
