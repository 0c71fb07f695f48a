"""The patches for Keras 3 that concern epochs and steps (see `keras3`)."""

from __future__ import annotations

import contextlib
import functools
import warnings
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import trainer as trainer_class
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH = 3  # batches of the probes' data; the number doesn't matter
TRAINER: Final = trainer_class()


# --- epochs: an iterator too many at the end of each, and a length that is one too high -------


class _ProbeEpoch(trainer.TFEpochIterator):  # type: ignore[misc]
    """An epoch over a list, which counts how often it is started."""

    def __init__(self, known: int | None) -> None:
        self.__dict__.update(
            steps_per_epoch=None,
            steps_per_execution=1,
            _num_batches=known,
            _steps_seen=0,
            _current_iterator=None,
            data_adapter=SimpleNamespace(on_epoch_begin=lambda: None, on_epoch_end=lambda: None),
        )
        self.begun = 0

    def _get_iterator(self) -> list[int]:
        self.begun += 1
        return list(range(_BATCH))

    def tf_sync(self) -> None:
        """Do nothing: no operation runs here."""


def _epochs_are_miscounted() -> bool:
    known = _ProbeEpoch(_BATCH)
    list(known._enumerate_iterator())
    unknown = _ProbeEpoch(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unknown.catch_stop_iteration():
            for _, _, iterator in unknown._enumerate_iterator():
                next(iterator)
    return known.begun != 1 or unknown._num_batches != _BATCH


def _patch_epochs() -> None:
    def enumerate_iterator(original: Any, self: Any) -> Iterator[tuple[int, int, Any]]:
        if self.steps_per_epoch:
            yield from original(self)
            return
        self.data_adapter.on_epoch_begin()
        self._current_iterator = iterator = iter(self._get_iterator())
        stride = self.steps_per_execution
        steps = range(0, self._num_batches, stride) if self._num_batches else count(0, stride)
        for step in steps:
            # Set before the step: if the step finds no more data, this is the epoch's length.
            self._steps_seen = step
            yield step, step + stride - 1, iterator
        self._current_iterator = None
        self._steps_seen = 0
        self.data_adapter.on_epoch_end()

    wrap(trainer.TFEpochIterator, "_enumerate_iterator", enumerate_iterator, Layer.BUG)


# --- a step that counts although it found no data ---------------------------------------------

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


def with_steps(adapter: Any, steps: int | None) -> Any:
    """Make a Keras data adapter report this number of steps."""

    class Adapter(type(adapter)):  # type: ignore[misc]
        num_batches = steps

    adapter.__class__ = Adapter
    return adapter


PATCHES: Final = (
    Patch(
        "epochs",
        "keras",
        "each epoch starts its data twice, and an unknown length is found one too high",
        _epochs_are_miscounted,
        _patch_epochs,
    ),
    Patch(
        "steps",
        "keras",
        "optimizer.iterations counts a step that found no more data",
        _ended_data_counts_as_a_step,
        _patch_steps,
    ),
)
