"""The rows of ``run(data=…)`` as the workers of ParameterServerStrategy read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gridflow._feed.selection import select
from gridflow._feed.store.records import FOLDER, OWN_ROWS, SPOOL_LINK
from gridflow._keras.servers.account import NOTHING, Account

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gridflow._feed.normalize import TensorSpec
    from gridflow._feed.selection import Columns, Selection, Tensor, Weights

#: Rows in the shuffle buffer; fewer if they are so large that they would fill the memory.
_WINDOW_ROWS: Final = 65_536
_WINDOW_BYTES: Final = 64 << 20
_TEXT_BYTES: Final = 32
#: Records that are shuffled before their rows.
_WINDOW_RECORDS: Final = 256


@dataclass(frozen=True)
class WorkerDataset:
    """A function that creates a worker's ``tf.data.Dataset``; the result of ``ctx.dataset`` there.

    The pipeline is traced by the chief and runs in the workers' servers, each of which reads its
    own rows. It can be passed to ``ctx.fit`` and to ``ctx.coordinator.create_per_worker_dataset``.

    `name`: Name of the dataset.
    `selection`: Its tensors.
    `specs`: Types and shapes of its columns.
    `rows`: Rows of each worker.
    `batch_size`: Rows in a step, which runs on one worker.
    `own_rows`: The same without borrowed rows.
    `function`: Applied to each batch in the worker's server; TensorFlow operations only.
    `prefetch`: Batches that a worker prefetches.
    `on_epoch`: Called with what a worker was fed in an epoch.
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
    on_epoch: Callable[[dict[str, Any]], None] | None = None

    def account(self, before: Mapping[str, Any] | None = None) -> Account:
        """Return the account of a pass over the rows; see `Account` for `before`."""
        return Account(self.own_rows, self.batch_size, before)

    @property
    def steps(self) -> int:
        """Steps needed to train on every row once; each worker makes its own batches."""
        return self.account().steps

    def tell(self, account: Account, epoch: int, updates: int) -> None:
        """Report what the workers were fed; see `Account.records`."""
        for record in account.records(self.name, epoch, self.rows, updates):
            if self.on_epoch is not None:
                self.on_epoch(record.to_dict())

    def __call__(self) -> Any:
        """Return an infinite dataset of batches of equal size."""
        rows = self._rows(shuffle=self.shuffle).repeat()
        return self._mapped(rows.batch(self.batch_size, drop_remainder=True))

    def numbered(self, epoch: int = 0, only: Sequence[Sequence[int]] | None = None) -> Any:
        """Return each of the worker's own rows once, in numbered batches, and then empty ones.

        A restarted worker makes the same batches in the same order. A worker's last batch may be
        smaller.

        `epoch`: Determines the order of shuffled rows.
        `only` (sequence of sequences of int): The batches of each worker to return; default: all.
        Returns: The worker, a number that differs each time this is read from the beginning, the
            number of a batch, and the batch. Infinite: the number of a batch that doesn't count is
            `NOTHING`.
        """
        import tensorflow as tf

        own, worker = tf.unstack(self._own(), 2)
        life = tf.cast(tf.timestamp() * 1e6, tf.int64)
        rows = self._rows(shuffle=self.shuffle, epoch=epoch).take(own)
        batches = self._mapped(rows.batch(self.batch_size)).enumerate()
        batches = batches.map(lambda number, *parts: (worker, life, number, _batch(*parts)))
        if only is not None:
            wanted = [(each, number) for each, found in enumerate(only) for number in found]
            pairs = tf.constant(wanted, tf.int64, (len(wanted), 2))
            batches = batches.filter(
                lambda worker, _, number, __: tf.reduce_any(
                    tf.reduce_all(pairs == tf.stack([worker, number]), axis=1)
                )
            )
        nothing = tf.constant(NOTHING, tf.int64)
        rest = self.row().map(lambda *parts: (worker, life, nothing, parts))
        return batches.concatenate(rest)

    def _own(self) -> Any:
        """Return the number of the worker's own rows, and the worker's number."""
        import tensorflow as tf

        # The same operations run on all workers: each finds its own numbers.
        found = tf.io.read_file(f"{SPOOL_LINK}/{self.name}/{FOLDER}/{OWN_ROWS}")
        return tf.io.parse_tensor(found, tf.int64)

    def row(self) -> Any:
        """Return an infinite dataset of one row of the worker, borrowed if it has no other."""
        return self._mapped(self._rows(shuffle=False).take(1).repeat().batch(1))

    def _mapped(self, batches: Any) -> Any:
        if self.function is not None:
            batches = batches.map(self.function)
        return batches.prefetch(self.prefetch)

    def _rows(self, *, shuffle: bool, epoch: int = 0) -> Any:
        import tensorflow as tf

        seed = self.seed + epoch
        columns = self.selection.columns
        # Relative to the working directory of the worker's server.
        folder = f"{SPOOL_LINK}/{self.name}/{FOLDER}"
        files = tuple(tf.data.TFRecordDataset(f"{folder}/{each}.tfrecord") for each in columns)
        records = tf.data.Dataset.zip(files)
        if shuffle:
            records = records.shuffle(_WINDOW_RECORDS, seed=seed)
        # Without autotuning: it would measure a pipeline that shares its machine with training.
        rows = records.map(self._parse).unbatch()
        if shuffle:
            window = min(_WINDOW_ROWS, max(1, _WINDOW_BYTES // self._row_bytes()))
            rows = rows.shuffle(window, seed=seed)
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


def _batch(batch: Any) -> tuple[Any, ...]:
    """Return a batch from ``enumerate`` as a tuple."""
    return batch if isinstance(batch, tuple) else (batch,)


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
    sample_weight: Weights | None,
    batch_size: int,
    shuffle: bool,
    seed: int,
    **options: Any,
) -> WorkerDataset:
    """Find the columns and return the dataset; parameters as in `TrainingContext.dataset`."""
    selection = select(specs, features, label, sample_weight, name)
    return WorkerDataset(name, selection, specs, rows, batch_size, shuffle, seed, **options)
