"""What a step computes.

A step of a Keras model computes what one process would compute on this rank's rows, and what
concerns the whole batch is averaged, weighted by rows. A step of a loop of one's own, and one of a
model that scales its losses itself, sees the number of ranks, and its gradients are added up: as
under ``MultiWorkerMirroredStrategy``.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras.group import own_steps
from gridflow._keras.patches.bugs import shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._keras.group.collective import CollectiveExchange
    from gridflow._keras.group.exchange import GroupExchange

_NAMES: Final = ("train_step", "test_step")


@dataclass(frozen=True)
class Step:
    """The step of a Keras model that runs, or is traced.

    `rows`: Rows of this rank's part of the batch, as a float.
    """

    rows: Any


def model_of(function: Any) -> Any:
    """Return the model of whose training or evaluation a function is the step, or None."""
    function = inspect.unwrap(function)
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if name in _NAMES and hasattr(owner, "distribute_strategy"):
        return owner
    return _enclosed(function, "model") if name == "run_step" else None  # tf_keras


def _enclosed(function: Any, name: str) -> Any:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = function.__closure__[names.index(name)].cell_contents if name in names else None
    return found if hasattr(found, "train_step") else None


def is_compiled(function: Any, model: Any) -> bool:
    """Return whether a function is the training step of a model that XLA is to compile."""
    function = inspect.unwrap(function)
    wanted = getattr(model, "jit_compile", None) is True and not model.run_eagerly
    return wanted and getattr(function, "__name__", "") == _NAMES[0]


def scales_itself(model: Any) -> bool:
    """Return whether a model's class reckons with several replicas; log what isn't obvious."""
    kind = type(model)
    if not own_steps.has_own(kind):
        return False
    found = own_steps.scales_itself(kind)
    if not found:
        own_steps.say(kind.__name__)
    return found


def part_of(batch: Any, exchange: GroupExchange | CollectiveExchange) -> shares.ReplicaPart | None:
    """Return this rank's part of a batch; None if its rows can't be counted.

    `batch`: The rows of the first one are counted, as Keras does.
    """
    rows = _rows_of(batch)
    if rows is None:
        return None
    rows = tf.cast(rows, tf.float32)
    graph = _graph()

    def of_all(numbers: Sequence[Any]) -> Any:
        mine = tf.stack([tf.cast(tf.stop_gradient(each), tf.float32) for each in numbers])
        (total,) = exchange.sums([tf.math.multiply_no_nan(mine, tf.sign(rows))])
        return tf.unstack(total)

    return shares.ReplicaPart(rows, of_all, lambda: _graph() is graph)


def reduced_by_rows(
    reduce: Callable[[Any, Any], Any], operation: Any, value: Any, step: Step
) -> Any:
    """Reduce values in a step, so that gradients through them are right.

    A gradient that comes back is that of a mean over one rank's rows, and the gradients of all
    ranks are weighted by the rows where they arrive: so it is weighted on its way.
    """
    there = tf.sign(step.rows)  # a row that only stands for rows adds nothing
    back = tf.math.reciprocal_no_nan(step.rows)
    flat = [_times(_with_gradient_times(each, back), there) for each in tf.nest.flatten(value)]
    found = reduce(operation, tf.nest.pack_sequence_as(value, flat))
    return tf.nest.map_structure(lambda each: _with_gradient_times(each, step.rows), found)


def _times(value: Any, factor: Any) -> Any:
    # The mean over no rows may be 0 / 0.
    return tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype))


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _with_gradient_times(value: Any, factor: Any) -> Any:
    """Return a value, whose gradient is multiplied by a factor."""

    def gradient(upstream: Any) -> Any:
        # What a row that only stands for rows makes of them may be no number.
        return tf.math.multiply_no_nan(upstream, tf.cast(factor, upstream.dtype)), None

    return tf.identity(value), gradient


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _rows_of(batch: Any) -> Any:
    """Return the number of rows of a batch; None if they can't be counted."""
    tensor = next((each for each in tf.nest.flatten(batch) if each is not None), None)
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows()
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    rank = getattr(getattr(tensor, "shape", None), "rank", None)
    return tf.shape(tensor)[0] if rank else None
