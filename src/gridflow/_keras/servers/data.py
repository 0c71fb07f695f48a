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
    from gridflow._feed.selection import Columns, Selection, Tensor

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
    on_epoch : callable, optional
        Told what a worker was fed in an epoch.
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
        """Return the account of a pass over the rows; see `Account` for what was before."""
        return Account(self.own_rows, self.batch_size, before)

    @property
    def steps(self) -> int:
        """Steps in which every row is trained on once: each worker makes batches of its own."""
        return self.account().steps

    def tell(self, account: Account, epoch: int, updates: int) -> None:
        """Pass on what the workers were fed; see `Account.records`."""
        for record in account.records(self.name, epoch, self.rows, updates):
            if self.on_epoch is not None:
                self.on_epoch(record.to_dict())

    def __call__(self) -> Any:
        """Return batches of equal size, without end."""
        rows = self._rows(shuffle=self.shuffle).repeat()
        return self._mapped(rows.batch(self.batch_size, drop_remainder=True))

    def numbered(self, epoch: int = 0, only: Sequence[Sequence[int]] | None = None) -> Any:
        """Return every row of the worker's own once, in numbered batches, and then nothing.

        A worker that is started again makes the same batches in the same order. The last one of a
        worker may be smaller.

        Parameters
        ----------
        epoch : int
            Decides on the order of shuffled rows.
        only : sequence of sequences of int, optional
            The batches of each worker that are wanted; all by default.

        Returns
        -------
        tf.data.Dataset
            Of the worker, a number that is another one each time that this is read from its
            beginning, the number of a batch, and the batch. Without end: the number of one that
            doesn't count is `NOTHING`.
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
        """Return how many rows are the worker's own, and which worker it is."""
        import tensorflow as tf

        # The same operations run on all workers: each finds its own numbers.
        found = tf.io.read_file(f"{SPOOL_LINK}/{self.name}/{FOLDER}/{OWN_ROWS}")
        return tf.io.parse_tensor(found, tf.int64)

    def row(self) -> Any:
        """Return one row of the worker, a lent one if it has no other, without end."""
        return self._mapped(self._rows(shuffle=False).take(1).repeat().batch(1))

    def _mapped(self, batches: Any) -> Any:
        if self.function is not None:
            batches = batches.map(self.function)
        return batches.prefetch(self.prefetch)

    def _rows(self, *, shuffle: bool, epoch: int = 0) -> Any:
        import tensorflow as tf

        seed = self.seed + epoch
        columns = self.selection.columns
        # From the working directory of the worker's server, wherever that is.
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
    """Return a batch as a tuple, as it came out of ``enumerate``."""
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
    sample_weight: str | None,
    batch_size: int,
    shuffle: bool,
    seed: int,
    **options: Any,
) -> WorkerDataset:
    """Find the columns and return the dataset; parameters as in `TrainingContext.dataset`."""
    selection = select(specs, features, label, sample_weight, name)
    return WorkerDataset(name, selection, specs, rows, batch_size, shuffle, seed, **options)
