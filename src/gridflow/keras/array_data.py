"""The rows of ``run(data=…)`` as batches of numpy arrays, for Keras 3 on JAX and torch.

Keras 3 takes a ``PyDataset`` on each of its backends, and asks it for batches by number. These
are read one after the other, whatever the number: their order is that of the plan of the epoch
(`gridflow.feed.batches`), as it is in ``tf.data``. No TensorFlow is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import keras
from gridflow.errors import SchemaError
from gridflow.feed.selection import select
from gridflow.feed.source import Source

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from gridflow.feed.selection import Columns
    from gridflow.feed.spool import SpoolReader


class ArrayDataset(keras.utils.PyDataset):  # type: ignore[misc]
    """Batches of one rank, an epoch for each iteration.

    Parameters
    ----------
    source : Source
        Which rows make up which batch.

    Attributes
    ----------
    batch_size : int
        Rows of this rank in a step.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._epoch: Generator[tuple[Any, ...]] | None = None
        self._left = 0
        self.batch_size = source.batch_size

    @property
    def num_batches(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        return self._source.steps

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return the next batch, of the next epoch if one has ended."""
        del index
        if self._epoch is None:
            self._left = self._source.steps - self._source.counter.pending[1]
            self._epoch = self._batches()
        batch = next(self._epoch)
        self._left -= 1
        if self._left == 0:
            self._end()
        return batch

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of the next epoch."""
        self._end()
        yield self[0]
        while self._epoch is not None:
            yield self[0]

    def on_epoch_begin(self) -> None:
        """Give up an epoch that a fit, ended early, has left behind."""
        self._end()

    def on_epoch_end(self) -> None:
        """Give up what is left of the epoch."""
        self._end()

    def sample(self) -> tuple[Any, ...]:
        """Return a batch of zeros, to build a model for; no row is read."""
        rows = self._source.batch_size
        return self._source.selection.pack(
            [
                np.zeros((rows, *tensor.row_shape), tensor.numpy_dtype)
                for tensor in self._source.selection.tensors
            ]
        )

    def _batches(self) -> Generator[tuple[Any, ...]]:
        for window in self._source.epoch():
            for number in range(len(window[0])):
                yield self._source.selection.pack([array[number] for array in window])

    def _end(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()


def make(
    reader: SpoolReader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: str | None = None,
    backend: str,
    **options: Any,
) -> ArrayDataset:
    """Return the dataset; `options` are those of `gridflow.feed.source.Source`.

    Raises
    ------
    SchemaError
        A column holds text or bytes, of which neither JAX nor torch makes tensors.
    """
    selection = select(reader.specs, features, label, sample_weight, reader.dataset)
    text = [column for t in selection.tensors if t.is_text for column in t.columns]
    if text:
        raise SchemaError(
            f"column {text[0]!r} of {reader.dataset!r} holds text or bytes, and backend="
            f"{backend!r} has no tensors of those. Turn it into numbers in the DataFrame, or use "
            "backend='tensorflow'."
        )
    source = Source(reader, selection, endless=True, **options)
    source.plan(0)  # refuses what can't be planned
    return ArrayDataset(source)
