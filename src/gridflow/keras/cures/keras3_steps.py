"""The cures for Keras 3 that have to do with epochs and steps (see `keras3`)."""

from __future__ import annotations

import functools
import inspect
import warnings
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.trainers import epoch_iterator

from gridflow.keras.cures.datasets import endless
from gridflow.keras.fixes import Fix
from gridflow.keras.hooks.early import coming_steps, iterator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH = 3  # batches of the probes' data; any number does
_GOES_ON: Final = "_gridflow_goes_on"
_ASKS: Final = "_gridflow_asks"
_plain_make_function = trainer.TensorFlowTrainer._make_function


# --- epochs: an iterator too many at the end of each, and a length that is one too high -------


class _ProbeEpoch(trainer.TFEpochIterator):  # type: ignore[misc]
    """An epoch over a list, which counts how often it is begun."""

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
        """Wait for nothing: no operation runs here."""


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


def _cure_epochs() -> None:
    original = trainer.TFEpochIterator._enumerate_iterator

    def _enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        if self.steps_per_epoch:
            yield from original(self)
            return
        self.data_adapter.on_epoch_begin()
        self._current_iterator = iterator = iter(self._get_iterator())
        stride = self.steps_per_execution
        steps = range(0, self._num_batches, stride) if self._num_batches else count(0, stride)
        for step in steps:
            # Set before the step is made: if that finds no more data, this is the epoch's length.
            self._steps_seen = step
            yield step, step + stride - 1, iterator
        self._current_iterator = None
        self._steps_seen = 0
        self.data_adapter.on_epoch_end()

    trainer.TFEpochIterator._enumerate_iterator = _enumerate_iterator


# --- a step that counts although it found no data ---------------------------------------------


def _ended_data_counts_as_a_step() -> bool:
    # Only running it would show it, and a probe must not run operations.
    return "control_dependencies" not in inspect.getsource(_plain_make_function)


def _cure_steps() -> None:
    original = trainer.TensorFlowTrainer._make_function

    def _make_function(self: Any, step_function: Callable[[Any], Any]) -> Any:
        @functools.wraps(step_function)
        def step_with_data(data: Any) -> Any:
            # Operations that need no data (iterations += 1) have to wait for it all the same.
            tensors = [
                leaf for leaf in tf.nest.flatten(data, expand_composites=True) if tf.is_tensor(leaf)
            ]
            with tf.control_dependencies(tensors):
                return step_function(data)

        return original(self, step_with_data)

    trainer.TensorFlowTrainer._make_function = _make_function


# --- steps_per_execution under a strategy with several replicas --------------------------------


def _many_steps_need_a_placeholder() -> bool:
    # Seen only when a function is traced and run: "You must feed a value for placeholder tensor".
    source = inspect.getsource(_plain_make_function)
    return "empty_outputs._element_spec" in source


class _OneStepAtATime:
    """A model, but for its ``steps_per_execution``."""

    steps_per_execution = 1

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _cure_many_steps() -> None:
    original = trainer.TensorFlowTrainer._make_function

    def _make_function(self: Any, step_function: Callable[[Any], Any]) -> Any:
        steps = self.steps_per_execution
        if steps == 1 or self.distribute_strategy.num_replicas_in_sync == 1:
            return original(self, step_function)
        one_step = original(_OneStepAtATime(self), step_function)

        def many_steps(iterator: Any) -> Any:
            outputs = one_step(iterator)
            for _ in range(1, steps):
                try:
                    outputs = one_step(iterator)
                except (StopIteration, tf.errors.OutOfRangeError):
                    break
            return outputs

        return many_steps

    trainer.TensorFlowTrainer._make_function = _make_function


# --- steps_per_epoch other than the steps that the data have -----------------------------------


def _data_end_within_an_epoch() -> bool:
    source = inspect.getsource(epoch_iterator.EpochIterator._enumerate_iterator)
    return "_interrupted_warning" in source and not hasattr(trainer.TFEpochIterator, _GOES_ON)


def _cure_ending() -> None:
    original = trainer.TFEpochIterator.__init__

    def __init__(  # noqa: N807
        self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        original(self, distribute_strategy, *args, **kwargs)
        # Only fit speaks of class weights. To evaluate and to predict, each row comes once.
        is_fit, known = "class_weight" in kwargs, self._num_batches
        if self.steps_per_epoch and is_fit and known not in {None, self.steps_per_epoch}:
            again = endless(kwargs.get("x"), self._distributed_dataset)
            if again is not None:
                self._distributed_dataset = again
                self.data_adapter = with_steps(self.data_adapter, None)
                self._num_batches = None
                self._gridflow_pass = known

    trainer.TFEpochIterator.__init__ = __init__
    setattr(trainer.TFEpochIterator, _GOES_ON, True)


# --- an epoch whose length comes to be known on the way -----------------------------------------


def _steps_are_not_asked_for() -> bool:
    return not hasattr(trainer.TFEpochIterator, _ASKS)


def _cure_asking() -> None:
    original = trainer.TFEpochIterator._enumerate_iterator

    def _enumerate_iterator(self: Any) -> Iterator[tuple[int, int, Any]]:
        steps = coming_steps(self)
        if steps is None:
            yield from original(self)
            return
        self.data_adapter.on_epoch_begin()
        self._current_iterator = iterator = iterator_of(self)
        for step in steps:
            self._steps_seen = step
            yield step, step, iterator
        self._current_iterator = None
        self._steps_seen = 0
        self.data_adapter.on_epoch_end()

    trainer.TFEpochIterator._enumerate_iterator = _enumerate_iterator
    setattr(trainer.TFEpochIterator, _ASKS, True)


def with_steps(adapter: Any, steps: int | None) -> Any:
    """Let an adapter of Keras say that its data have so many steps."""

    class Adapter(type(adapter)):  # type: ignore[misc]
        num_batches = steps

    adapter.__class__ = Adapter
    return adapter


FIXES: Final = (
    Fix(
        "steps_per_epoch",
        "keras",
        "an epoch of steps_per_epoch ends before, where the data of a worker end",
        _data_end_within_an_epoch,
        _cure_ending,
    ),
    Fix(
        "epochs",
        "keras",
        "each epoch begins its data twice, and an unknown length is found one too high",
        _epochs_are_miscounted,
        _cure_epochs,
    ),
    Fix(
        "coming_steps",
        "keras",
        "the length of an epoch has to be known before it, or is found by running out of data",
        _steps_are_not_asked_for,
        _cure_asking,
    ),
    Fix(
        "steps",
        "keras",
        "optimizer.iterations counts a step that found no more data",
        _ended_data_counts_as_a_step,
        _cure_steps,
    ),
    Fix(
        "steps_per_execution",
        "keras",
        "steps_per_execution > 1 fails with several replicas (missing placeholder)",
        _many_steps_need_a_placeholder,
        _cure_many_steps,
    ),
)
