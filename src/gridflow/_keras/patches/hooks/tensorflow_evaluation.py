"""Rows that count once outside training, under TensorFlow, for Keras 3 and tf_keras.

All replicas run equal steps, and some of their batches may be empty. Models and metrics
don't notice: an empty batch gets a real row. Its effect on the metrics is undone, and its
prediction is dropped.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gridflow._keras.patches.hooks import evaluation_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gridflow._feed.dataset.evaluation_view import EvaluationView
    from gridflow._keras.patches.registry import Hook


def hook(cls: Any, variables_of: Callable[[Any], list[Any]]) -> Hook:
    """Return the hook for a flavour's models.

    `cls`: The model class, with ``fit``, ``evaluate`` and ``predict``.
    `variables_of`: Returns the variables of a model's metrics.
    """

    def evaluating(model: Any, once: EvaluationView) -> Any:
        return _knowing_empty_batches(
            model,
            once,
            "test",
            lambda step: without_a_trace(
                step, lambda batch: _filled(batch, once.row), model, variables_of
            ),
        )

    @contextlib.contextmanager
    def predicting(model: Any, once: EvaluationView | None) -> Iterator[Callable[[Any], Any]]:
        if once is None:
            yield lambda found: found
            return
        with _knowing_empty_batches(
            model, once, "predict", lambda step: _predicted(step, once.row)
        ):
            yield lambda found: tf.nest.map_structure(once.in_order, found)

    return evaluation_view.hook(cls, cls, evaluating, predicting)


@contextlib.contextmanager
def _knowing_empty_batches(
    model: Any, once: EvaluationView, kind: str, changed: Callable[[Any], Any]
) -> Iterator[None]:
    """Replace a model's ``test_step`` or ``predict_step`` in a block.

    The functions that Keras makes from it are kept separate from the model's own.
    """
    if not once.has_empty_batches:
        yield
        return
    step_name, function_name = f"{kind}_step", f"{kind}_function"
    own = getattr(model, function_name)
    # Bypasses Keras's __setattr__, which would track the value.
    object.__setattr__(model, step_name, changed(getattr(model, step_name)))
    object.__setattr__(model, function_name, evaluation_view.known_function(once, model, kind))
    try:
        yield
    finally:
        evaluation_view.keep_function(once, model, kind)
        object.__setattr__(model, function_name, own)
        object.__delattr__(model, step_name)


def _filled(batch: Any, row: Any) -> tuple[Any, Any]:
    """Return a batch with a row added if it was empty, and whether it was empty."""
    first = next(part for part in tf.nest.flatten(batch) if part is not None)
    is_empty = tf.equal(tf.shape(first)[0], 0)
    rows = tf.cast(is_empty, tf.int32)
    filled = tf.nest.map_structure(lambda part, one: tf.concat([part, one[:rows]], 0), batch, row)
    return filled, is_empty


def without_a_trace(
    step: Callable[[Any], Any],
    fill: Callable[[Any], tuple[Any, Any] | None],
    model: Any,
    variables_of: Callable[[Any], list[Any]],
) -> Callable[[Any], Any]:
    """Return a step that takes empty batches, of which metrics don't notice.

    `step`: Keras's, which takes a batch.
    `fill`: Returns a batch with a row added if it was empty, and whether it was empty; None: the
        step takes the batch as it is.
    `variables_of`: Returns the variables of a model's metrics.
    """

    @functools.wraps(step)
    def filled_step(batch: Any) -> Any:
        found = fill(batch)
        if found is None:
            return step(batch)
        filled, is_empty = found
        before = {id(each): tf.identity(_value(each)) for each in variables_of(model)}
        logs = step(filled)
        for each in variables_of(model):
            # Metrics created by the step start at zero.
            old = before.get(id(each))
            value = _value(each)
            each.assign(tf.where(is_empty, tf.zeros_like(value) if old is None else old, value))
        return logs

    return filled_step


def _predicted(step: Callable[[Any], Any], row: Any) -> Callable[[Any], Any]:
    def predict_step(batch: Any) -> Any:
        filled, is_empty = _filled(batch, row)
        most = tf.where(is_empty, 0, tf.int32.max)
        return tf.nest.map_structure(lambda part: part[:most], step(filled))

    return predict_step


def _value(variable: Any) -> Any:
    return tf.convert_to_tensor(getattr(variable, "_value", variable))
