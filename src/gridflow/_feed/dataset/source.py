"""From a rank's rows to ``tf.data``: the common part of all datasets.

A source consists of a reader, a plan that says which rows make up which batch, and a grant that
says whether there is another step and whether it may be made. `EpochSource` is for rows that are
read once per epoch, `StreamSource` for pushed rows, which come once.

How Keras reads a dataset, and what follows for this module
------------------------------------------------------------
From keras 3.15 (``backend/tensorflow/trainer.py``, ``trainers/epoch_iterator.py``) and tf_keras
2.21 (``engine/data_adapter.py``); each statement has a test in ``tests/feed``.

* Keras 3 asks for the dataset's cardinality once, before ``on_train_begin``, and creates an
  iterator at the start of each epoch **and one more at its end, which it discards unused**. So an
  epoch begins when its first batch is read, not when an iterator is created (`EpochCounter.begin`).
* ``on_epoch_begin`` is called after the iterator is created (tf_keras) or before (Keras 3), always
  before the first read. A callback that calls ``EpochCounter.set(epoch)`` there makes the order of
  rows depend on the epoch only, whatever else has read batches (building the model, ``adapt``).
* An epoch that ends by running out of data has drawbacks: Keras warns, and the optimizer's
  ``iterations`` may end one too high. So a resumed epoch of ``steps - k`` batches must end by
  number.

  - Keras 3: ``EpochIterator._enumerate_iterator`` reads ``self._num_batches`` when an epoch begins.
    It can be lowered by k for one epoch, or counted from k (`keras.patches.hooks.position`).
  - tf_keras: ``fit`` asks ``model._maybe_load_initial_counters_from_ckpt(steps, initial_epoch)``
    for (epoch, step) and then reads exactly ``steps - k`` batches in the first epoch.
* ``assert_cardinality`` would make a resumed epoch that is read to its end (by a custom loop) an
  error. So the cardinality comes from ``take(steps)`` over an epoch's batches and, after them, the
  endless repetition of an empty dataset, with which a shortened epoch ends.
* tf_keras accepts a distributed dataset only with ``steps_per_epoch``, and then uses one iterator
  for all epochs: use ``endless=True`` there, and set the counter once, before ``fit``.

`tensors` makes tensors of the arrays that `assemble` yields, ragged ones among them.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from gridflow._feed.ledger import EpochRecord
from gridflow._feed.memory import keep_freed
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.plan.grants import Grant
    from gridflow._feed.selection import Selection, Tensor
    from gridflow._feed.store.reader import StreamReader

__all__ = [
    "LOOK_SECONDS",
    "SOURCE",
    "Source",
    "chain",
    "is_mirrored",
    "own_part",
    "shared",
    "signature",
    "source_of",
    "spent",
    "tensors",
]


def signature(wanted: Sequence[Tensor], rows: int | None) -> tuple[Any, ...]:
    """Return the types and shapes of the arrays; ``rows`` is a common batch size, if any."""
    import tensorflow as tf

    found = []
    for tensor in wanted:
        kind = tf.string if tensor.is_text else tf.as_dtype(tensor.numpy_dtype)
        if tensor.is_ragged:
            found += [tf.TensorSpec((None, rows), tf.int64), tf.TensorSpec((None,), kind)]
        else:
            found.append(tf.TensorSpec((None, rows, *tensor.row_shape), kind))
    return tuple(found)


def tensors(wanted: Sequence[Tensor], arrays: Sequence[Any]) -> list[Any]:
    """Return the tensors of batches; called in a graph."""
    import tensorflow as tf

    found, waiting = [], iter(arrays)
    for tensor in wanted:
        array = next(waiting)
        if tensor.is_ragged:
            lengths = tf.reshape(array, [-1])
            if tensor.is_sparse:
                found.append(_sparse(next(waiting), array, tensor.row_shape[1]))
                continue
            flat = tf.RaggedTensor.from_row_lengths(next(waiting), lengths, validate=False)
            size = array.shape[1] or tf.shape(array, tf.int64)[1]
            array = tf.RaggedTensor.from_uniform_row_length(flat, size, validate=False)
        found.append(array)
    return found


def _sparse(items: Any, lengths: Any, size: int) -> Any:
    """Return batches of vectors, whose values and indices are packed into eight bytes."""
    import tensorflow as tf

    counts = tf.shape(lengths, tf.int64)
    rows = tf.repeat(tf.range(counts[0] * counts[1]), tf.reshape(lengths, [-1]))
    halves = tf.bitcast(items, tf.uint32)  # lower half first
    places = tf.stack([rows // counts[1], rows % counts[1], tf.cast(halves[:, 1], tf.int64)], 1)
    values = tf.bitcast(halves[:, 0], tf.float32)
    batch_rows = counts[1] if lengths.shape[1] is None else lengths.shape[1]
    return tf.SparseTensor(places, values, (counts[0], batch_rows, size))


#: Attribute of a dataset with its source.
SOURCE: Final = "gridflow_source"
#: That an iteration waits for rows at a time.
LOOK_SECONDS: Final = 0.2
_spent: dict[str, float] = {"source": 0.0, "coming": 0.0}
S = TypeVar("S", bound="Source")


@dataclass(kw_only=True)
class Source(ABC):
    """One dataset of one rank, ready to be iterated.

    `reader`: What has the rows.
    `selection`: The columns.
    `grant`: How far an iteration may go.
    `batch_size`: Maximum rows of this rank in a step.
    `tail` ({"spread", "repeat", "drop", "partial"}): How uneven ranks run equal steps
        (`gridflow._feed.plan.epochs.steps_for`).
    `replicas`: Elements per step: each replica of this process gets one.
    `function`: Applied to each batch.
    `first_steps`: Maximum number of steps, if there are more.
    `on_epoch`: Gets the dict of an `EpochRecord` when the last batch of an epoch is returned, or
        when an iteration is abandoned. Called from tf.data's thread.
    """

    reader: Reader | StreamReader
    selection: Selection
    grant: Grant
    batch_size: int
    tail: Tail = "spread"
    rank: int = 0
    replicas: int = 1
    function: Callable[..., Any] | None = None
    first_steps: int | None = None
    on_epoch: Callable[[dict[str, Any]], None] | None = None

    @abstractmethod
    def epoch(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the next epoch, window by window, and report it when it ends or is closed.

        While it waits for rows it yields windows without batches: TensorFlow can drop an iteration
        only between two windows, and would wait otherwise.
        """

    def begin(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Begin the next epoch."""
        keep_freed()  # now, as TensorFlow has made the dataset
        return _timed(self.epoch())

    @abstractmethod
    def _ready(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield batches from an element on whose rows have arrived, to another or less far."""

    def _arriving(self, start: int = 0) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield batches from an element on as the grant allows them, until all rows are there."""
        at = start
        while True:
            began = time.perf_counter()
            steps = self.grant.steps_beyond(at // self.replicas, LOOK_SECONDS)
            _spent["coming"] += time.perf_counter() - began
            if steps is None:
                return
            if steps * self.replicas <= at:
                yield self.nothing()
                continue
            for batches in self._ready(at, steps * self.replicas):
                at += len(batches[0])
                yield batches

    @abstractmethod
    def has_step(self, step: int, seconds: float | None = None) -> bool | None:
        """Return whether an iteration has a step, once that is known; None if time is over."""

    def steps_if_known(self) -> int | None:
        """Return the steps of an iteration, None while they aren't known."""
        return None

    def step_of_fit(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a fit runs the step that it has asked for."""
        return contextlib.nullcontext()

    def static_rows(self) -> int | None:
        """Return the rows of an element, None where they may differ."""
        return None if self.tail == "spread" else self.batch_size // self.replicas

    def bounded(self, batches: Any) -> Any:
        """Return the dataset of an iteration, made of that of an epoch."""
        steps = self.first_steps
        return batches if steps is None else batches.take(steps * self.replicas)

    def mapped(self, batches: Any) -> Any:
        """Return the dataset after what its batches go through."""
        import tensorflow as tf

        if self.function is None:
            return batches
        return batches.map(self.function, num_parallel_calls=tf.data.AUTOTUNE)

    def dataset(self, prefetch: int = 2) -> Any:
        """Return the ``tf.data.Dataset``."""
        import tensorflow as tf

        drawn = signature(self.selection.tensors, self.static_rows())
        # A graph keeps what it calls. What is called without one, TensorFlow keeps for ever; but a
        # dataset is kept by all that is made of it, and by its iterators.
        begin = _weakly(self) if tf.executing_eagerly() else self.begin
        windows = tf.data.Dataset.from_generator(begin, output_signature=drawn)
        setattr(windows, SOURCE, self)
        # Each call of a generator costs about 0.4 ms. Slices of a window cost nothing: if a batch
        # is a multiple of 64 bytes, they aren't even copied.
        batches = windows.flat_map(
            lambda *arrays: tf.data.Dataset.from_tensor_slices(
                self.selection.pack(tensors(self.selection.tensors, arrays))
            )
        )
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        batches = self.mapped(self.bounded(batches))
        dataset = batches.prefetch(prefetch * self.replicas).with_options(options)
        setattr(dataset, SOURCE, self)
        return dataset

    def _record(self, epoch: int, **counts: Any) -> None:
        """Tell the ledger of an epoch; see `EpochRecord`."""
        if self.on_epoch is not None:
            record = EpochRecord(self.reader.dataset, self.rank, epoch, **counts)
            self.on_epoch(record.to_dict())

    def nothing(self) -> tuple[np.ndarray, ...]:
        """Return a window without batches."""
        size = self.batch_size // self.replicas
        found: list[np.ndarray] = []
        for tensor in self.selection.tensors:
            if tensor.is_ragged:  # row lengths and items, see `assemble`
                found += [np.empty((0, size), np.int64), np.empty(0, tensor.numpy_dtype)]
            else:
                found.append(np.empty((0, size, *tensor.row_shape), tensor.numpy_dtype))
        return tuple(found)


def spent(what: str) -> float:
    """Return the seconds of this process's sources.

    ``source``: waiting for rows and making windows; of these ``coming``: waiting for rows that have
    yet to arrive.
    """
    return _spent[what]


def _timed(windows: Iterator[tuple[np.ndarray, ...]]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield windows, and count how long each takes."""
    with contextlib.closing(windows):  # type: ignore[type-var]
        while True:
            began = time.perf_counter()
            window = next(windows, None)
            _spent["source"] += time.perf_counter() - began
            if window is None:
                return
            yield window


def _weakly(source: Source) -> Callable[[], Iterator[tuple[np.ndarray, ...]]]:
    """Return what begins epochs as long as somebody else keeps the source."""
    found = weakref.ref(source)

    def epoch() -> Iterator[tuple[np.ndarray, ...]]:
        living = found()
        assert living is not None, "a dataset lives as long as its iterators"
        return living.begin()

    return epoch


def source_of(dataset: object) -> Source | None:
    found: Source | None = getattr(dataset, SOURCE, None)
    return found


def is_mirrored(strategy: Any) -> bool:
    """Return whether several devices of a process share its batches."""
    return _is_synchronous(strategy) and len(strategy.extended.worker_devices) > 1


def _is_synchronous(strategy: Any) -> bool:
    import tensorflow as tf

    kinds = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    return isinstance(strategy, kinds)


def own_part(strategy: Any, dataset: Any) -> Any:
    """Return a dataset of this process's own batches in the form for the strategy's ``fit``.

    A strategy of several replicas would take its part of each batch otherwise.
    """
    if not _is_synchronous(strategy) or strategy.num_replicas_in_sync == 1:
        return dataset
    return strategy.distribute_datasets_from_function(lambda _: dataset)


def shared(strategy: Any, source: S) -> S:
    """Return the source for a process whose replicas share its batches.

    Raises `InvalidArgument`: ``batch_size`` can't be divided among the replicas, or ``tail`` is
        ``"partial"`` under a strategy whose replicas need equal batches.
    """
    if not is_mirrored(strategy):
        return source
    if source.tail == "partial":
        raise InvalidArgument(
            f"tail='partial' makes a smaller last batch, which {type(strategy).__name__} can't "
            "split evenly. Use tail='spread', 'repeat' or 'drop'."
        )
    replicas = len(strategy.extended.worker_devices)
    if source.batch_size % replicas:
        raise InvalidArgument(
            f"batch_size={source.batch_size} can't be split evenly among the {replicas} replicas "
            f"of this process. Use a multiple of {replicas}."
        )
    return replace(source, replicas=replicas)


def chain(first: Callable[..., Any] | None, second: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of batches that does what both do, one after the other."""
    if first is None:
        return second

    def both(*batch: Any) -> Any:
        found = first(*batch)
        return second(*found) if isinstance(found, tuple) else second(found)

    return both
