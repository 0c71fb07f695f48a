"""The rows of ``run(data=…)`` as batches of numpy arrays, for Keras 3 on other backends.

Keras 3 supports ``PyDataset`` on all of its backends, and asks it for batches by number. Batches
are read sequentially, whatever the number, in the order of the epoch's plan
(`gridflow._feed.plan.epochs`), as in ``tf.data``. TensorFlow isn't needed.
"""

from __future__ import annotations

import functools
import math
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

import keras
from gridflow._feed.dataset.epochs import EpochSource
from gridflow._feed.dataset.evaluation_view import attach
from gridflow._feed.dataset.source import chain
from gridflow._feed.plan.epochs import EpochCounter
from gridflow._feed.plan.grants import FixedGrant
from gridflow._feed.selection import select
from gridflow._spec.option_checks import whole_number
from gridflow.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, MutableMapping, Sequence

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.plan.epochs import Tail
    from gridflow._feed.selection import Columns, Weights


class ArrayDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of one rank; each iteration is an epoch.

    `source`: Which rows make up which batch.
    `own_rows`: Rows of each rank that count outside training; only this rank's if each rank trains
        alone.
    `batch_size`: Maximum rows of this rank in a step.
    """

    def __init__(self, source: EpochSource, own_rows: Sequence[int] = ()) -> None:
        super().__init__()
        self.gridflow_source = source
        self._own_rows = own_rows
        self._epoch: Generator[Any] | None = None
        self._left = 0
        self.batch_size = source.batch_size
        if own_rows:
            attach(self, ArrayOnce(source, own_rows))

    @property
    def num_batches(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        return self.gridflow_source.steps_given

    def __len__(self) -> int:
        """Return the steps of an epoch."""
        return self.num_batches

    def map(self, function: Callable[..., Any]) -> ArrayDataset:
        """Return a dataset with a function applied to its batches.

        `function`: It gets ``x``, ``x, y`` or ``x, y, sample_weight`` of a batch, numpy arrays or
            dicts of them, and returns what Keras should get.
        """
        both = chain(self.gridflow_source.function, function)
        return ArrayDataset(replace(self.gridflow_source, function=both), self._own_rows)

    def take(self, steps: int) -> ArrayDataset:
        """Return a dataset of the first steps of each epoch."""
        steps = min(whole_number("steps", steps, 1), len(self))
        return ArrayDataset(replace(self.gridflow_source, first_steps=steps), self._own_rows)

    def repeat(self) -> EndlessArrays:
        """Return the dataset that starts over when it ends."""
        return EndlessArrays(self.gridflow_source)

    def __getitem__(self, index: int) -> Any:
        """Return the next batch; start the next epoch if one has ended."""
        del index
        if self._epoch is None:
            self._left = self.gridflow_source.steps_given - self.gridflow_source.counter.pending[1]
            self._epoch = self._batches()
        batch = next(self._epoch)
        self._left -= 1
        if self._left == 0:
            self._end()
        return batch

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch."""
        self._end()
        yield self[0]
        while self._epoch is not None:
            yield self[0]

    def on_epoch_begin(self) -> None:
        """Discard an unfinished epoch of a fit that ended early."""
        self._end()

    def on_epoch_end(self) -> None:
        """Discard the rest of the epoch."""
        self._end()

    def sample(self) -> Any:
        """Return a batch to build a model with: zeros, unless a function must be applied to it."""
        if self.gridflow_source.function is not None:
            aside = replace(self.gridflow_source, counter=EpochCounter(), on_epoch=None)
            return next(iter(ArrayDataset(aside)))
        rows = self.gridflow_source.batch_size
        return self.gridflow_source.selection.pack(
            [
                np.zeros((rows, *tensor.row_shape), tensor.numpy_dtype)
                for tensor in self.gridflow_source.selection.tensors
            ]
        )

    def _batches(self) -> Generator[Any]:
        function = self.gridflow_source.function
        for window in self.gridflow_source.epoch():
            for number in range(len(window[0])):
                batch = self.gridflow_source.selection.pack([array[number] for array in window])
                if function is not None:
                    batch = function(*batch) if isinstance(batch, tuple) else function(batch)
                yield batch

    def _end(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()


class EndlessArrays(ArrayDataset):
    """The same batches in an endless loop over the rows, whatever Keras calls an epoch."""

    @property
    def num_batches(self) -> None:  # type: ignore[override]
        """Return None: the number is infinite."""
        return

    def on_epoch_begin(self) -> None:
        """Continue where the previous epoch stopped."""

    def on_epoch_end(self) -> None:
        """Keep the rest of the pass."""


class ArrayOnce:
    """The dataset's rows outside training: the rank's own, each once, in order.

    `source`, `own_rows`: As for `ArrayDataset`.
    `is_empty`: Whether this rank has no rows. Its only batch then is a borrowed row, which isn't
        counted.
    `is_global`: Whether the batches of all ranks form global batches that contain each row once.
    `functions`: Keras's functions for this rank only, by model.
    """

    def __init__(self, source: EpochSource, own_rows: Sequence[int]) -> None:
        own = own_rows[source.rank if len(own_rows) > 1 else 0]
        self.is_empty = own == 0
        # Each rank has its own number of steps: no rank waits for another.
        steps = math.ceil(own / source.batch_size)
        size = source.batch_size
        tail: Tail = "spread"
        if self.is_empty:
            steps, size, tail = 1, 1, "repeat"
        once = replace(
            source,
            grant=FixedGrant(steps),
            batch_size=size,
            tail=tail,
            shuffle=False,
            counter=EpochCounter(),
            rows_wanted=0,
            own_rows=own,
        )
        self.is_global = own > 0 and len(set(own_rows)) == 1 and not once.plan(0).rows_repeated
        if not self.is_global:
            once = replace(once, multiple=1)
        self._source = once
        self.functions: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def view(self) -> ArrayDataset:
        """The dataset, which refers to this object."""
        dataset = ArrayDataset(self._source)
        attach(dataset, self)
        return dataset


def make(
    reader: Reader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    backend: str,
    is_alone: bool,
    own_rows: Sequence[int],
    parts: int | None = None,
    **options: Any,
) -> ArrayDataset:
    """Return the dataset; `options` are those of `gridflow._feed.dataset.epochs.EpochSource`.

    `is_alone`: Whether each rank trains for itself.
    `own_rows`: Rows of each rank that count outside of training.
    `parts`: Number of equal parts into which each batch is split, if those of all ranks are equal,
        too.
    Raises `SchemaError`: A column holds text or bytes, which this backend doesn't support.
    """
    selection = select(reader.specs, features, label, sample_weight, reader.dataset)
    for tensor in selection.tensors:
        if tensor.is_ragged:
            raise SchemaError(
                f"column {tensor.columns[0]!r} of {reader.dataset!r} is "
                f"{'sparse' if tensor.is_sparse else 'ragged'}, and backend={backend!r} has no "
                "such tensors. Feed it "
                f"{'as a dense vector' if tensor.is_sparse else 'as Padded(length)'}."
            )
    text = [column for t in selection.tensors if t.is_text for column in t.columns]
    if text:
        raise SchemaError(
            f"column {text[0]!r} of {reader.dataset!r} holds text or bytes, and backend="
            f"{backend!r} has no string tensors. Convert it to numbers in the DataFrame, or use "
            "backend='tensorflow'."
        )
    source = EpochSource(reader=reader, selection=selection, endless=True, **options)
    if is_alone:
        own_rows = [own_rows[source.rank]]
    elif parts is not None:
        source = replace(source, rows_wanted=max(reader.rows, *own_rows), multiple=parts)
    source.plan(0)  # raises an error if no epoch can be planned
    return ArrayDataset(source, own_rows)
