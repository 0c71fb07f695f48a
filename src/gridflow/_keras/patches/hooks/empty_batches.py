"""Steps of a replica that has no data while others still have some, for Keras 3 and tf_keras.

TensorFlow gives it empty batches, as all replicas must run equal steps. Not all layers can take
them: the gradients of a convolution fail, and the mean over no rows isn't a number. So the step
gets a row of zeros, which counts for nothing: gradients are weighted by the rows that there really
are (`gridflow._keras.patches.bugs.shares`), metrics are left as they were, and so are the
statistics of normalization layers.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.hooks.tensorflow_evaluation import without_a_trace
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

#: On the function that Keras has made of a step: whether it fills empty batches.
_FILLS: Final = "_gridflow_fills"
#: On a model: whether its current data may end on one replica before they do on others.
_UNEVEN: Final = "_gridflow_uneven"
_KINDS: Final = ("train", "test")


def keras3_hook(
    trainer: Any, variables_of: Callable[[Any], list[Any]], leave_statistics: Callable[[], None]
) -> Hook:
    """Return the hook for the trainer of Keras 3.

    `variables_of`: Returns the variables of a model's metrics.
    `leave_statistics`: Keeps layers from counting such a part of a batch.
    """

    def make_function(original: Any, self: Any, step_function: Callable[[Any], Any]) -> Any:
        if _may_be_empty(self):
            step_function = without_a_trace(step_function, _filled, self, variables_of)
        return original(self, step_function)

    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is not None:
            _look_at(self, getattr(iterator, "_distributed_dataset", None))
        original(self, iterator=iterator, data_batch=data_batch)

    def install() -> None:
        wrap(trainer, "_maybe_symbolic_build", build, Layer.ROWS)
        wrap(trainer, "_make_function", make_function, Layer.ROWS)
        for kind in _KINDS:
            wrap(trainer, f"make_{kind}_function", _remade(kind), Layer.ROWS)
        leave_statistics()

    return _hook(install)


def tf_keras_hook(
    model: Any,
    handler: Any,
    variables_of: Callable[[Any], list[Any]],
    leave_statistics: Callable[[], None],
) -> Hook:
    """Return the hook for the models of tf_keras, whose functions look their step up when traced.

    `handler`: The class that handles their data.
    `variables_of`, `leave_statistics`: As for Keras 3.
    """

    def with_step(kind: str) -> Callable[..., Any]:
        name, remade = f"{kind}_step", _remade(kind)

        def make(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            step = getattr(self, name)
            if not hasattr(step, _FILLS):
                filled = without_a_trace(step, _filled, self, variables_of)

                @functools.wraps(step)
                def either(batch: Any) -> Any:
                    fills = getattr(getattr(self, f"{kind}_function"), _FILLS, False)
                    return (filled if fills else step)(batch)

                setattr(either, _FILLS, None)
                # Bypasses tf_keras's __setattr__, which would track it as a part of the model.
                vars(self)[name] = either
            return remade(original, self, *args, **kwargs)

        return make

    def init(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if kwargs.get("model") is not None:
            _look_at(kwargs["model"], self._dataset)

    def install() -> None:
        wrap(handler, "__init__", init, Layer.ROWS)
        for kind in _KINDS:
            wrap(model, f"make_{kind}_function", with_step(kind), Layer.ROWS)
        leave_statistics()

    return _hook(install)


def _hook(install: Callable[[], None]) -> Hook:
    return Hook("a replica without data takes part in steps, and counts for nothing", install)


def _remade(kind: str) -> Callable[..., Any]:
    """Return a wrapper that makes a function anew for data that differ in what they need."""
    name = f"{kind}_function"

    def make(original: Any, self: Any, force: bool = False) -> Any:
        known, fills = getattr(self, name), _may_be_empty(self)
        changes = known is not None and getattr(known, _FILLS, False) != fills
        made = original(self, force or changes)
        setattr(getattr(self, name), _FILLS, fills)
        return made

    return make


def may_stand_for_rows(inputs: Any) -> bool:
    """Return whether a row may only stand for rows: what is traced for a known number has them."""
    return inputs.shape[0] is None or tf.executing_eagerly()


def _may_be_empty(model: Any) -> bool:
    """Return whether a model's current data may end on one replica before they do on others."""
    return bool(getattr(model, _UNEVEN, False))


def _look_at(model: Any, dataset: Any) -> None:
    is_uneven = bool(getattr(dataset, "_enable_get_next_as_optional", False))
    # Bypasses Keras's __setattr__, which would track it as a part of the model.
    object.__setattr__(model, _UNEVEN, is_uneven)


def _filled(batch: Any) -> tuple[Any, Any] | None:
    """Return a batch that has a row of zeros if it was empty, and whether it was empty.

    None where a replica's rows aren't counted, as in steps that scale their losses themselves: they
    get the empty batch.
    """
    part = shares.current()
    if part is None:
        return None
    is_empty = tf.equal(part.rows, 0)
    fill = functools.partial(_with_row, part=part, rows=tf.cast(is_empty, tf.int32))
    return tf.nest.map_structure(fill, batch), is_empty


def _with_row(tensor: Any, part: shares.ReplicaPart, rows: Any) -> Any:
    """Return a tensor with that many rows of zeros added: none or one."""
    if isinstance(tensor, tf.RaggedTensor):
        splits = tensor.row_splits
        last = tf.repeat(splits[-1:], rows)
        splits = tf.concat([splits, last], 0)
        return tf.RaggedTensor.from_row_splits(tensor.values, splits, validate=False)
    if isinstance(tensor, tf.SparseTensor):
        more = tf.cast(rows, tf.int64) * tf.one_hot(0, tf.size(tensor.dense_shape), dtype=tf.int64)
        return tf.SparseTensor(tensor.indices, tensor.values, tensor.dense_shape + more)
    if not tf.is_tensor(tensor) or not tensor.shape.rank:
        return tensor
    # Without rows to add this copies nothing.
    more = [rows, *(_missing(tensor, axis, part, rows) for axis in range(1, tensor.shape.rank))]
    filled = tf.pad(tensor, tf.stack([tf.zeros_like(more), more], axis=1))
    return tf.ensure_shape(filled, [None, *tensor.shape[1:]])  # eagerly, the batch had no row


def _missing(tensor: Any, axis: int, part: shares.ReplicaPart, rows: Any) -> Any:
    """Return how much larger an axis of an empty batch must be, to be as large as that of others.

    TensorFlow makes an empty batch with zeros for all sizes that aren't known.
    """
    if tensor.shape[axis] is not None:
        return tf.zeros_like(rows)
    size = tf.shape(tensor)[axis]
    (mean,) = part.means([size])
    return rows * (tf.cast(mean, tf.int32) - size)
