"""From a spool to ``tf.data``: the one module of the feed that imports TensorFlow.

How Keras reads a dataset, and what follows for this module
------------------------------------------------------------
Read in keras 3.15 (``backend/tensorflow/trainer.py``, ``trainers/epoch_iterator.py``) and
tf_keras 2.21 (``engine/data_adapter.py``); each statement has a test in ``tests/feed``.

* Keras 3 asks the dataset's cardinality once, before ``on_train_begin``, and makes an iterator at
  the start of each epoch **and one more at its end, which it throws away undrawn**. So an epoch
  begins when its first batch is drawn, not when an iterator is made (`EpochCounter.begin`).
* ``on_epoch_begin`` comes after the iterator is made (tf_keras) or before (Keras 3), always before
  the first draw. A callback that calls ``EpochCounter.set(epoch)`` there makes the order of rows a
  function of the epoch alone, whatever else has drawn batches (building the model, ``adapt``).
* An epoch that ends by running out of data costs: Keras warns, and the optimizer's ``iterations``
  may end one too high. So a resumed epoch of ``steps - k`` batches must end by number.

  - Keras 3: ``EpochIterator._enumerate_iterator`` reads ``self._num_batches`` when an epoch begins.
    It can be lowered by k there for one epoch, or counted from k (`keras.patches.hooks.position`).
  - tf_keras: ``fit`` asks ``model._maybe_load_initial_counters_from_ckpt(steps, initial_epoch)``
    for (epoch, step) and then draws exactly ``steps - k`` batches in the first epoch.
* ``assert_cardinality`` would turn a resumed epoch that is read to its end (an own loop) into an
  error. So the cardinality comes from ``repeat().take(steps)`` over a generator that gives each
  epoch all its batches; after a shortened epoch the repetition finds it empty and ends.
* tf_keras accepts a distributed dataset only with ``steps_per_epoch``, and then uses one iterator
  for all epochs: give ``endless=True`` there, and set the counter once, before ``fit``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gridflow._feed.dataset import ragged
from gridflow._feed.dataset.assemble import assemble, window_rows_for
from gridflow._feed.dataset.evaluation_view import EvaluationView, attach, source_of_view
from gridflow._feed.ledger import EpochRecord
from gridflow._feed.plan.counter import EpochCounter
from gridflow._feed.plan.epochs import BatchPlan, Tail, rank_seed
from gridflow._feed.selection import Columns, Selection, select
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.plan.grants import FirstPlan

__all__ = ["Source", "distribute", "made", "make_dataset", "shared"]

S = TypeVar("S", bound="Source")


@dataclass
class Source:
    """One dataset of one rank, ready to be iterated; see `make_dataset` for the fields."""

    reader: Reader
    selection: Selection
    batch_size: int
    steps: int
    tail: Tail = "spread"
    shuffle: bool = False
    seed: int = 0
    rank: int = 0
    counter: EpochCounter = field(default_factory=EpochCounter)
    on_epoch: Callable[[dict[str, Any]], None] | None = None
    window_rows: int | None = None
    #: Elements per step: each replica of this process gets one.
    replicas: int = 1
    endless: bool = False
    #: For batches that must be as large as those of other ranks, see `BatchPlan`.
    rows_wanted: int = 0
    multiple: int = 1
    #: What a batch goes through.
    function: Callable[..., Any] | None = None
    #: Steps that are given, where these are fewer.
    first_steps: int | None = None
    #: Outside training: the rows that count, each of which comes once, in order.
    own_rows: int | None = None
    _ended_early: bool = False

    def window(self, *, shuffle: bool) -> int:
        """Return how many rows to hold at a time."""
        size_of, columns = self.reader.row_bytes, self.selection
        found = window_rows_for(size_of(columns.columns), size_of(columns.texts), shuffle=shuffle)
        return self.window_rows or found

    def plan(self, epoch: int) -> BatchPlan | FirstPlan:
        """Return the plan of an epoch, in elements of ``batch_size / replicas`` rows."""
        rows = self.window(shuffle=self.shuffle)
        return BatchPlan(
            self.reader.chunk_rows,
            self.batch_size // self.replicas,
            self.steps * self.replicas,
            self.tail,
            self.shuffle,
            rank_seed(self.seed, self.rank),
            epoch,
            rows,
            self.rows_wanted,
            self.multiple,
            self.reader.chunks_together,
        )

    @property
    def steps_given(self) -> int:
        """Steps of an iteration."""
        return self.steps if self.first_steps is None else min(self.steps, self.first_steps)

    @property
    def has_empty_batches(self) -> bool:
        """Whether there are fewer rows that count than batches."""
        return self.own_rows is not None and self.own_rows < self.steps * self.replicas

    def epoch(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the next epoch, window by window, and report it when it ends or is closed."""
        if self._ended_early:
            # tf.data's repeat, come back at once after an epoch that was shortened.
            self._ended_early = False
            return
        epoch, start_step = self.counter.begin()
        start = start_step * self.replicas
        yield from self.planned(epoch, start, start)
        self._ended_early = start > 0 and not self.endless

    def planned(self, epoch: int, start: int, at: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield what is left at an element of an epoch, begun at another, whose plan is known."""
        plan = self.plan(epoch)
        if at >= plan.steps > 0:
            raise InvalidArgument(
                f"the epoch has {plan.steps // self.replicas} steps, it can't start at batch "
                f"{at // self.replicas}. An epoch that was complete continues with "
                f"EpochCounter.set({epoch + 1})."
            )
        last = plan.steps
        if self.first_steps is not None:
            last = min(last, self.first_steps * self.replicas)
        if at >= last:
            self.report(epoch, plan, start, last, complete=True)
            return
        try:
            for batches in assemble(self.reader, self.selection.tensors, plan, at, last):
                at += len(batches[0])
                if at == last:
                    # The consumer needn't come back after the last batch: Keras doesn't.
                    self.report(epoch, plan, start, at, complete=True)
                yield batches
        finally:
            if at < last:
                self.report(epoch, plan, start, at, complete=False)

    def report(
        self, epoch: int, plan: BatchPlan | FirstPlan, start: int, at: int, *, complete: bool
    ) -> None:
        """Say what an epoch, begun at an element, was fed until it came to another."""
        if self.on_epoch is None:
            return
        before, until = plan.rows_before(start), plan.rows_before(at)
        left_out = plan.rows_left_out
        if self.own_rows is not None:  # batches are emptied again that repeat rows
            before, until = min(before, self.own_rows), min(until, self.own_rows)
            left_out = plan.rows - self.own_rows
        if complete:  # of an epoch that is cut short, too
            left_out = max(0, plan.rows - until)
        record = EpochRecord(
            self.reader.dataset,
            self.rank,
            epoch,
            rows_fed=until - before,
            rows_repeated=max(0, until - plan.rows),
            rows_left_out=left_out,
            complete=complete,
            rows_before=before,
        )
        self.on_epoch(record.to_dict())

    def dataset(self, prefetch: int = 2) -> Any:
        """Return the ``tf.data.Dataset``."""
        import tensorflow as tf

        signature = ragged.signature(self.selection.tensors, self.static_rows())
        windows = tf.data.Dataset.from_generator(self.epoch, output_signature=signature)
        # A generator costs some 0.4 ms each time it is asked. Slices of a window cost nothing:
        # where a batch is a multiple of 64 bytes they aren't even copied.
        batches = self.bounded(
            windows.flat_map(
                lambda *arrays: tf.data.Dataset.from_tensor_slices(
                    self.selection.pack(ragged.tensors(self.selection.tensors, arrays))
                )
            )
        )
        if self.function is not None:
            batches = batches.map(self.function, num_parallel_calls=tf.data.AUTOTUNE)
        if self.has_empty_batches:
            batches = batches.enumerate().map(self._emptied)
        options = tf.data.Options()
        options.autotune.enabled = False
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return batches.prefetch(prefetch * self.replicas).with_options(options)

    def static_rows(self) -> int | None:
        """Return the rows of an element, None where they differ."""
        return self.batch_size // self.replicas if self.plan(0).is_even else None

    def bounded(self, batches: Any) -> Any:
        """Return the dataset of an iteration, made of that of an epoch."""
        batches = batches.repeat()
        if self.endless:
            return batches
        return batches.take(self.steps_given * self.replicas)

    def complete(self) -> Source:
        """Return the source of all rows, once they have arrived: here, this one."""
        return self

    def _emptied(self, number: Any, batch: Any) -> Any:
        """Take the rows out of batches that have none of their own: they are repeated ones.

        Only now: what they went through needn't know batches without rows.
        """
        import tensorflow as tf

        most = tf.where(number < self.own_rows, tf.int64.max, tf.constant(0, tf.int64))
        return tf.nest.map_structure(lambda part: part[:most], batch)


def make_dataset(
    reader: Reader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: str | None = None,
    batch_size: int,
    steps: int,
    tail: Tail = "spread",
    shuffle: bool = False,
    seed: int = 0,
    rank: int = 0,
    counter: EpochCounter | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    endless: bool = False,
    prefetch: int = 2,
    window_rows: int | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of the rows of one rank.

    Parameters
    ----------
    reader
        The rank's spool of the dataset.
    features, label, sample_weight
        The columns, see `gridflow._feed.selection`. Elements are ``x``, a tensor or a dict,
        ``(x, y)`` or ``(x, y, weight)``.
    batch_size : int
        Rows in a batch of this rank; with ``tail="spread"`` the most that there are.
    steps : int
        Batches in an epoch, the same on all ranks: `gridflow._feed.plan.epochs.steps_for`. It is
        the dataset's cardinality.
    tail : {"spread", "repeat", "drop", "partial"}, default "spread"
        How uneven rows become equal steps. With ``"spread"`` and ``"partial"`` the size of a batch
        is static only where all batches are full.
    shuffle : bool, default False
        Whether each epoch has an order of its own, decided by seed, rank and epoch.
    seed, rank : int, default 0
        See above.
    counter : EpochCounter, optional
        Each iteration takes the next epoch from it.
    on_epoch : callable, optional
        Gets the dict of an `EpochRecord` when the last batch of an epoch is handed over, or when
        an iteration is given up. Called from tf.data's thread.
    endless : bool, default False
        Go on with the next epoch instead of ending; the cardinality is then infinite.
    prefetch : int, default 2
        Batches that are made ahead.
    window_rows : int, optional
        Rows shuffled together; by default 65,536, or as many as fit into 64 MiB.

    Raises
    ------
    SchemaError
        When a column doesn't exist or doesn't fit.
    """
    source = _source(
        reader,
        select(reader.specs, features, label, sample_weight, reader.dataset),
        batch_size=batch_size,
        steps=steps,
        tail=tail,
        shuffle=shuffle,
        seed=seed,
        rank=rank,
        counter=counter or EpochCounter(),
        on_epoch=on_epoch,
        window_rows=window_rows,
        endless=endless,
    )
    return source.dataset(prefetch)


def distribute(
    strategy: Any,
    reader: Reader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: str | None = None,
    prefetch: int = 2,
    own_rows: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Return the dataset in the form that the strategy's ``Model.fit`` and ``run`` want.

    ``batch_size`` stays the rows of this rank and step: where the process has several replicas,
    each gets its share. Mirrored strategies get a distributed dataset, which TensorFlow neither
    shards nor re-batches; all others, and None, the plain one. Other parameters as in
    `make_dataset`.

    Parameters
    ----------
    own_rows : sequence of int, optional
        Rows of each rank that count outside of training. With them the dataset knows its
        `gridflow._feed.dataset.evaluation_view.EvaluationView`.

    Raises
    ------
    InvalidArgument
        When ``batch_size`` can't be divided among the replicas, or ``tail`` is ``"partial"`` under
        a strategy whose replicas need equal batches.
    """
    options["counter"] = options.get("counter") or EpochCounter()
    source = _source(
        reader, select(reader.specs, features, label, sample_weight, reader.dataset), **options
    )
    return made(strategy, shared(strategy, source), prefetch, own_rows)


def shared(strategy: Any, source: S) -> S:
    """Return the source of a process whose replicas share its batches."""
    import tensorflow as tf

    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    if not isinstance(strategy, mirrored):
        return source
    if source.tail == "partial":
        raise InvalidArgument(
            f"tail='partial' gives a smaller last batch, which {type(strategy).__name__} can't "
            f"share out evenly. Use tail='spread', 'repeat' or 'drop'."
        )
    replicas = len(strategy.extended.worker_devices)
    if source.batch_size % replicas:
        raise InvalidArgument(
            f"batch_size={source.batch_size} can't be split evenly among the {replicas} replicas "
            f"of this process. Use a multiple of {replicas}."
        )
    return replace(source, replicas=replicas)


def made(
    strategy: Any,
    source: Source,
    prefetch: int,
    own_rows: Sequence[int] | Callable[[], Sequence[int]] | None,
) -> Any:
    """Return the dataset of a source, with what it is outside of training.

    That is known at once where ``own_rows`` are, and found out when it is needed where they are
    what returns them.
    """
    import tensorflow as tf

    def make(source: Source) -> Any:
        if not isinstance(strategy, mirrored):
            return source.dataset(prefetch)
        from gridflow._feed.dataset.distributed import distributed

        return distributed(
            strategy, source, prefetch, lambda other: made(strategy, other, prefetch, own_rows)
        )

    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    dataset = make(source)
    if own_rows is None:
        return dataset
    together = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    rank = source.rank if together else 0

    def once() -> EvaluationView:
        known = own_rows() if callable(own_rows) else own_rows
        rows = known if together else [known[source.rank]]
        return EvaluationView(source_of_view(source.complete(), rank, rows), make, rows)

    return attach(dataset, once if callable(own_rows) else once())


def _source(reader: Reader, selection: Selection, **options: Any) -> Source:
    source = Source(reader, selection, **options)
    source.plan(0)  # refuses what can't be planned here, not in tf.data's thread
    return source
