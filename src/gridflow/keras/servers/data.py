"""The rows of ``run(data=…)`` as the workers of ParameterServerStrategy read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow.feed.records import FOLDER, OWN_ROWS, SPOOL_LINK
from gridflow.feed.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow.feed.schema import TensorSpec
    from gridflow.feed.selection import Columns, Selection, Tensor

#: Rows that are mixed with one another, unless they are so large that fewer fill the memory.
_WINDOW_ROWS: Final = 65_536
_WINDOW_BYTES: Final = 64 << 20
_TEXT_BYTES: Final = 32
#: Records whose order is mixed before their rows are.
_WINDOW_RECORDS: Final = 256


@dataclass(frozen=True)
class WorkerDataset:
    """A function that makes a worker's ``tf.data.Dataset``; what ``ctx.dataset`` gives there.

    The pipeline is traced by the chief and runs in the servers of the workers, each of which reads
    the rows that came to it. It can be given to ``ctx.fit``, and called by
    ``ctx.coordinator.create_per_worker_dataset``.

    Attributes
    ----------
    name : str
        Of the dataset.
    selection : Selection
        Its tensors.
    specs : mapping
        Types and shapes of its columns.
    rows : tuple of int
        Rows of each worker.
    batch_size : int
        Rows in a step, which is made by one worker.
    shuffle : bool
    seed : int
    own_rows : tuple of int
        Those of them that no other worker has lent.
    function : callable, optional
        What a batch goes through, in the worker's server: operations of TensorFlow alone.
    prefetch : int
        Batches that a worker makes ahead.
    """

    name: str
    selection: Selection
    specs: Mapping[str, TensorSpec]
    rows: tuple[int, ...]
    batch_size: int
    shuffle: bool
    seed: int
    own_rows: tuple[int, ...]
    function: Callable[..., Any] | None = None
    prefetch: int = 2

    @property
    def steps(self) -> int:
        """Steps in which as many rows are trained as there are on all workers together."""
        return math.ceil(sum(self.rows) / self.batch_size)

    def __call__(self) -> Any:
        """Return batches of equal size, without end."""
        rows = self._rows(shuffle=self.shuffle).repeat()
        return self._mapped(rows.batch(self.batch_size, drop_remainder=True))

    def once(self) -> Any:
        """Return every row of the worker's own once; the last batch may be smaller."""
        import tensorflow as tf

        # The same operations run on all workers: each finds its own number.
        count = tf.io.read_file(f"{SPOOL_LINK}/{self.name}/{FOLDER}/{OWN_ROWS}")
        own = self._rows(shuffle=False).take(tf.io.parse_tensor(count, tf.int64)[0])
        return self._mapped(own.batch(self.batch_size))

    def row(self) -> Any:
        """Return one row of the worker, a lent one if it has no other, without end."""
        return self._mapped(self._rows(shuffle=False).take(1).repeat().batch(1))

    def _mapped(self, batches: Any) -> Any:
        if self.function is not None:
            batches = batches.map(self.function)
        return batches.prefetch(self.prefetch)

    def _rows(self, *, shuffle: bool) -> Any:
        import tensorflow as tf

        columns = self.selection.columns
        # From the working directory of the worker's server, wherever that is.
        folder = f"{SPOOL_LINK}/{self.name}/{FOLDER}"
        files = tuple(tf.data.TFRecordDataset(f"{folder}/{each}.tfrecord") for each in columns)
        records = tf.data.Dataset.zip(files)
        if shuffle:
            records = records.shuffle(_WINDOW_RECORDS, seed=self.seed)
        # Without autotuning: it would measure a pipeline that shares its machine with training.
        rows = records.map(self._parse).unbatch()
        if shuffle:
            window = min(_WINDOW_ROWS, max(1, _WINDOW_BYTES // self._row_bytes()))
            rows = rows.shuffle(window, seed=self.seed)
        return rows

    def _parse(self, *records: Any) -> Any:
        import tensorflow as tf

        columns = {}
        for name, record in zip(self.selection.columns, records, strict=True):
            kind, shape = self.specs[name]
            dtype = tf.string if isinstance(kind, str) else tf.as_dtype(kind)
            columns[name] = tf.ensure_shape(tf.io.parse_tensor(record, dtype), (None, *shape))
        return self.selection.pack([_tensor(each, columns) for each in self.selection.tensors])

    def _row_bytes(self) -> int:
        sizes = [self.specs[name] for name in self.selection.columns]
        return sum(
            (_TEXT_BYTES if isinstance(kind, str) else kind.itemsize)
            * math.prod(size or 1 for size in shape)
            for kind, shape in sizes
        )


def _tensor(tensor: Tensor, columns: Mapping[str, Any]) -> Any:
    import tensorflow as tf

    if not tensor.stacked:
        return columns[tensor.columns[0]]
    parts = [
        tf.reshape(tf.cast(columns[name], tf.float32), (-1, width))
        for name, width in zip(tensor.columns, tensor.widths, strict=True)
    ]
    return tf.concat(parts, axis=1)


def make(
    name: str,
    specs: Mapping[str, TensorSpec],
    rows: tuple[int, ...],
    *,
    features: Columns,
    label: Columns | None,
    sample_weight: str | None,
    batch_size: int,
    shuffle: bool,
    seed: int,
    **options: Any,
) -> WorkerDataset:
    """Find the columns and return the dataset; parameters as in `TrainingContext.dataset`."""
    selection = select(specs, features, label, sample_weight, name)
    return WorkerDataset(name, selection, specs, rows, batch_size, shuffle, seed, **options)
