"""The patch for a step of Keras 3 that counts although it found no data (see `keras3`)."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import trainer as trainer_class
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINER: Final = trainer_class()


# The probe runs no operation: that would start TensorFlow's eager context, after which devices
# can't be configured.


class _StepMadeError(Exception):
    """Raised by the probe's step, because the code after it would run operations."""


class _Batches(tf.data.Iterator):  # type: ignore[misc]
    """An iterator of one placeholder that records whether its end was checked."""

    element_spec = _type_spec = tf.TensorSpec([1], tf.float32)

    def __init__(self) -> None:
        self.batch = tf.compat.v1.placeholder(tf.float32, [1])
        self.is_asked = False

    def get_next(self) -> Any:
        return self.batch

    __next__ = get_next

    def get_next_as_optional(self) -> Any:
        """Return an optional that is checked first and then holds the batch."""
        optional = tf.experimental.Optional.from_value(self.batch)
        batches = self

        class Asked(type(optional)):  # type: ignore[misc]
            def has_value(self, name: str | None = None) -> bool:
                del name
                batches.is_asked = True
                return True

        optional.__class__ = Asked
        return optional


def _stand_in() -> Any:
    """Return a stand-in for a model while Keras makes a function of its steps."""
    strategy = SimpleNamespace(run=lambda step, args: step(*args), num_replicas_in_sync=1)
    return SimpleNamespace(
        run_eagerly=True,
        jit_compile=False,
        steps_per_execution=1,
        unrolled_steps_per_execution=1,
        distribute_strategy=strategy,
        _autoconvert_optionals=lambda step: step,
    )


def _waits_for(operation: Any, other: Any) -> bool:
    """Return whether an operation of a graph runs only after another."""
    seen, left = set(), [operation]
    while left:
        each = left.pop()
        if each is other:
            return True
        if each not in seen:
            seen.add(each)
            left += [*(tensor.op for tensor in each.inputs), *each.control_inputs]
    return False


def _ended_data_counts_as_a_step() -> bool:
    """Return whether operations of a step that need no data run without any."""
    found = []

    def step(data: Any) -> None:
        del data
        counts = tf.no_op()  # as iterations += 1, which needs none
        found.append(_waits_for(counts, batches.batch.op) or batches.is_asked)
        raise _StepMadeError

    with tf.Graph().as_default(), contextlib.suppress(_StepMadeError):
        batches = _Batches()
        TRAINER._make_function(_stand_in(), step)(batches)
    return not found[0]


def _patch_steps() -> None:
    def make_function(original: Any, self: Any, step_function: Callable[[Any], Any]) -> Any:
        @functools.wraps(step_function)
        def step_with_data(data: Any) -> Any:
            # Operations that need no data (iterations += 1) must wait for it, too.
            tensors = [
                leaf for leaf in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(leaf)
            ]
            with tf.control_dependencies(tensors), tf.variable_creator_scope(without_waiting):
                return step_function(data)

        return original(self, step_with_data)

    def without_waiting(create: Any, **kwargs: Any) -> Any:
        # A first value that waits for data can't be moved out of the step, which XLA demands.
        with tf.control_dependencies(None):
            return create(**kwargs)

    wrap(TRAINER, "_make_function", make_function, Layer.BUG)


PATCHES: Final = (
    Patch(
        "steps",
        "keras",
        "optimizer.iterations counts a step that found no more data",
        _ended_data_counts_as_a_step,
        _patch_steps,
    ),
)
