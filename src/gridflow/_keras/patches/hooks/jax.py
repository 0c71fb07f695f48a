"""The hooks for Keras 3 on JAX, where several processes train one model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np
from jax.experimental import multihost_utils

import keras
from gridflow._keras.neutral import numbers
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import compiling, evaluation_view, fits, group, saving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._keras.array_data import ArrayOnce

TRAINER: Final = private_parts.trainer()
FIT: Final = group.FIT


def averaging() -> None:
    """Return None: JAX computes statistics and metrics over the global batch."""


def _broadcast(variables: list[Any]) -> None:
    values = [np.asarray(variable.value) for variable in variables]
    for variable, value in zip(
        variables, multihost_utils.broadcast_one_to_all(values), strict=True
    ):
        variable.assign(np.asarray(value))


@contextlib.contextmanager
def _alone(
    model: Any, variables: list[Any], function_name: str, known: Any = None
) -> Iterator[None]:
    """Let this process run a model by itself inside, with a function made for that."""
    distribution = keras.distribution.distribution()
    values = [variable._value for variable in variables]
    function = getattr(model, function_name)
    setattr(model, function_name, known)
    keras.distribution.set_distribution(None)
    try:
        for variable, value in zip(variables, values, strict=True):
            # A copy, because the step reuses the memory of its arguments.
            variable._value = jax.numpy.array(np.asarray(value), copy=True)
        yield
    finally:
        keras.distribution.set_distribution(distribution)
        for variable, value in zip(variables, values, strict=True):
            variable._value = value
        setattr(model, function_name, function)


def _is_group() -> bool:
    return keras.distribution.distribution() is not None and jax.process_count() > 1


def _add_up(values: list[Any]) -> list[Any]:
    """Return the values' sums over all processes. All processes must call it."""
    mine = [np.asarray(value) for value in values]
    if jax.process_count() == 1:
        return mine
    everywhere = multihost_utils.process_allgather(mine)
    return [np.sum(each, axis=0, dtype=each.dtype) for each in everywhere]


@contextlib.contextmanager
def _evaluating(model: Any, once: ArrayOnce) -> Iterator[Callable[[Any], Any]]:
    """Let ranks evaluate different numbers of rows, which global batches don't support."""
    results = model._get_metrics_result_or_logs
    if once.is_global or keras.distribution.distribution() is None:
        yield results
        return
    # Variables that the test would create must exist in all processes.
    private_parts.build(model, once.view.sample())
    metrics = model.metrics_variables

    def of_all(logs: Any) -> Any:
        for variable, total in zip(metrics, _add_up([v.value for v in metrics]), strict=True):
            variable.assign(total)
        found = results(logs)
        if found is not logs:
            return found
        # A custom step may return any logs.
        mine = numbers(logs)
        means = [total / jax.process_count() for total in _add_up(list(mine.values()))]
        return {**logs, **dict(zip(mine, means, strict=True))}

    variables = [*model.trainable_variables, *model.non_trainable_variables, *metrics]
    known = evaluation_view.known_function(once, model, "test")
    with _alone(model, variables, "test_function", known):
        yield of_all
        evaluation_view.keep_function(once, model, "test")


@contextlib.contextmanager
def _predicting(model: Any, once: ArrayOnce | None) -> Iterator[None]:
    """Let a rank predict for itself, and several devices on batches that don't split evenly."""
    is_uneven = once is not None and not once.is_global
    if keras.distribution.distribution() is None or not (is_uneven or _is_group()):
        yield
        return
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    known = None if once is None else evaluation_view.known_function(once, model, "predict")
    with _alone(model, variables, "predict_function", known):
        yield
        if once is not None:
            evaluation_view.keep_function(once, model, "predict")


HOOKS: Final = (
    group.same_weights(TRAINER, _broadcast, jax.distributed.is_initialized),
    group.hook(TRAINER, _evaluating, _predicting),
    compiling.hook(private_parts.base_trainer(), "keras"),
    fits.hook(TRAINER, keras.callbacks.CallbackList),
    saving.hook(),
)
