"""The patches for Keras 3 that concern epochs and steps (see `keras3`)."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from gridflow._keras.patches.bugs import probing
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


def _ended_data_counts_as_a_step() -> bool:
    """Return whether operations of a step that need no data run without any."""
    found = []

    def step(data: Any) -> None:
        del data
        counts = tf.no_op()  # as iterations += 1, which needs none
        found.append(probing.waits_for(counts, batches.batch.op) or batches.is_asked)
        raise probing.StepMadeError

    with tf.Graph().as_default(), contextlib.suppress(probing.StepMadeError):
        batches = probing.Batches()
        TRAINER._make_function(probing.model(), step)(batches)
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


# --- steps_per_execution under a strategy with several replicas --------------------------------


def _many_steps_are_made_in_a_branch() -> bool:
    """Return whether steps run in a branch of a loop, where replicas can't get data.

    Running it fails with "You must feed a value for placeholder tensor".
    """
    found = []

    def step(data: Any) -> None:
        del data
        found.append(tf.compat.v1.get_default_graph() is graph)
        raise probing.StepMadeError

    with tf.Graph().as_default() as graph, contextlib.suppress(probing.StepMadeError):
        model = probing.model(steps_per_execution=2, distribute_strategy=probing.strategy(2))
        TRAINER._make_function(model, step)(probing.Batches())
    return not found[0]


class _OneStepAtATime:
    """A model without its ``steps_per_execution``."""

    steps_per_execution = 1

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _patch_many_steps() -> None:
    def make_function(original: Any, self: Any, step_function: Callable[[Any], Any]) -> Any:
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

    wrap(TRAINER, "_make_function", make_function, Layer.BUG)


# --- predict_on_batch: every replica predicts all rows, and they come as often ------------------


class _GatheredError(Exception):
    """Raised if predictions of all replicas would be combined."""


class _TwoReplicas(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Runs steps like one of two workers, without a cluster."""

    num_replicas_in_sync = 2
    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True)

    def __init__(self) -> None:
        """Don't start a cluster as the base class does."""

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Run a step immediately."""
        del kwargs, options
        return fn(*args)

    def experimental_local_results(self, value: Any) -> Any:
        """Return the results of this worker's replicas."""
        return (value,)

    def gather(self, value: Any, axis: int) -> Any:
        """Collect the results of other workers."""
        del value, axis
        raise _GatheredError


class _Predicting:
    """What Keras asks of a model before it predicts; its prediction is a number."""

    make_predict_function = TRAINER.make_predict_function
    predict_function = None

    def __init__(self) -> None:
        vars(self).update(vars(probing.model(distribute_strategy=_TwoReplicas())))

    def predict_step(self, data: Any) -> Any:
        """Return an object with a value."""
        del data
        return SimpleNamespace(numpy=lambda: 1.0)


def _all_replicas_predict_a_batch() -> bool:
    try:
        TRAINER.predict_on_batch(_Predicting(), 1.0)
    except _GatheredError:
        return True
    return False


class _OfFirstReplica:
    """A model whose ``predict_function`` is only for the first replica of this process."""

    predict_function = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self.distribute_strategy = SimpleNamespace(run=self._run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _run(self, step: Callable[..., Any], args: Any) -> Any:
        strategy = self._model.distribute_strategy
        found = strategy.run(step, args=args)
        return tf.nest.map_structure(lambda one: strategy.experimental_local_results(one)[0], found)


def _patch_predicting_a_batch() -> None:
    make = TRAINER.make_predict_function
    #: By model: the function of all replicas, which Keras drops when the model changes, and ours.
    functions: Any = weakref.WeakKeyDictionary()

    def predict_on_batch(original: Any, self: Any, x: Any) -> Any:
        if self.distribute_strategy.num_replicas_in_sync == 1:
            return original(self, x)
        self.make_predict_function()
        known, function = functions.get(self, (None, None))
        if known is not self.predict_function:
            alone = _OfFirstReplica(self)
            make(alone)
            function = alone.predict_function
            functions[self] = self.predict_function, function
        # In a list, as Keras passes the batches of several steps.
        found = function([(x,)])
        return tf.nest.map_structure(trainer.convert_to_np_if_not_ragged, found)

    wrap(TRAINER, "predict_on_batch", predict_on_batch, Layer.BUG)


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
    Patch(
        "steps_per_execution",
        "keras",
        "steps_per_execution > 1 fails with several replicas (missing placeholder)",
        _many_steps_are_made_in_a_branch,
        _patch_many_steps,
    ),
    Patch(
        "predict_on_batch",
        "keras",
        "predict_on_batch predicts all rows on each of several replicas, and returns them "
        "repeatedly",
        _all_replicas_predict_a_batch,
        _patch_predicting_a_batch,
    ),
)
