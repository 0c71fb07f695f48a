"""A source's dataset for a strategy."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gridflow._feed.dataset.epochs import EpochSource
from gridflow._feed.dataset.evaluation_view import EvaluationView, attach
from gridflow._feed.dataset.source import SOURCE, Source, chain, is_mirrored, shared
from gridflow._feed.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.selection import Columns, Weights

__all__ = ["distribute", "formed"]

S = TypeVar("S", bound=Source)


class _Cardinality(int):
    """A number of steps: a property of distributed datasets, and a method of all others."""

    def __call__(self) -> Any:
        """Return it as ``tf.data.Dataset.cardinality`` does."""
        import tensorflow as tf

        return tf.constant(int(self), tf.int64)


@functools.cache
def _of_rows(base: Any) -> Any:
    class RowsDataset(base):  # type: ignore[misc]
        """Batches of this rank, of which it is known which rows count also after map and take."""

        gridflow_source: Source
        again: Callable[[Source], Any]

        def map(self, function: Callable[..., Any], *_: Any, **__: Any) -> Any:
            """Return a dataset with a function applied to its batches.

            `function`: As for ``tf.data.Dataset.map``: it gets ``x``, ``x, y`` or ``x, y,
                sample_weight`` of a batch. Calls are always parallel, and their results in order.
            """
            before = self.gridflow_source.function
            return self.again(replace(self.gridflow_source, function=chain(before, function)))

        def take(self, count: int, name: str | None = None) -> Any:
            """Return a dataset of the first batches of each epoch."""
            del name
            if int(count) < 0:
                return self
            return self.again(replace(self.gridflow_source, first_steps=int(count)))

    RowsDataset.__name__ = base.__name__
    return RowsDataset


@functools.cache
def _of_devices(base: Any) -> Any:
    class SharedDataset(_of_rows(base)):  # type: ignore[misc]
        """Batches of this rank, one for each of its devices in a step."""

        @property
        def cardinality(self) -> int:
            """Steps of an epoch: TensorFlow counts the elements, one for each device and step."""
            known = int(super().cardinality)
            return _Cardinality(known // self.gridflow_source.replicas if known > 0 else known)

        def __len__(self) -> int:
            """Return the steps of an epoch, the same on all ranks."""
            if self.cardinality < 0:
                raise TypeError("the number of steps isn't known before all rows have arrived.")
            return self.cardinality

    return SharedDataset


def formed(strategy: Any, source: S, prefetch: int, again: Callable[[S], Any]) -> Any:
    """Return the dataset of a source in the form for the strategy's ``fit`` and ``run``.

    Where several devices of a process share its batches, that is a distributed dataset, which
    TensorFlow neither shards nor rebatches. All others, and None, get the plain one. ``again``
    creates a similar dataset from another source.
    """
    import tensorflow as tf

    if is_mirrored(strategy):
        found: Any = strategy.distribute_datasets_from_function(lambda _: source.dataset(prefetch))
        setattr(found, SOURCE, source)
        form = _of_devices
    else:
        found = source.dataset(prefetch)
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return found
        form = _of_rows
    kind: Any = type(found)
    found.__class__ = form(kind)
    found.again = again
    return found


def distribute(
    strategy: Any,
    reader: Reader,
    *,
    features: Columns,
    label: Columns | None = None,
    sample_weight: Weights | None = None,
    prefetch: int = 2,
    own_rows: Sequence[int] | Callable[[], Sequence[int]] | None = None,
    **options: Any,
) -> Any:
    """Return a dataset of the rows of one rank, as the strategy's ``fit`` and ``run`` want it.

    ``batch_size`` stays the rows of this rank and step: where the process has several replicas,
    each gets its share.

    `reader`: The rank's rows of the dataset; of those that arrive, a spool that grows and has a
        row.
    `features`, `label`, `sample_weight`: The columns, see `gridflow._feed.selection`. Elements are
        ``x``, a tensor or a dict, ``(x, y)`` or ``(x, y, weight)``.
    `prefetch`: Batches that are made ahead.
    `own_rows` (sequence of int, or what returns it; optional): Rows of each rank that count outside
        of training. With them the dataset knows its
        `gridflow._feed.dataset.evaluation_view.EvaluationView`: at once, or found out when it is
        needed.
    `**options`: Fields of `EpochSource`.
    Raises `SchemaError`: When a column doesn't exist or doesn't fit.
    Raises `InvalidArgument`: See `gridflow._feed.dataset.source.shared`.
    """
    selection = select(reader.specs, features, label, sample_weight, reader.dataset)
    source = EpochSource(reader=reader, selection=selection, **options)
    if source.grant.is_fixed:
        source.plan(0)  # refuses what can't be planned here, not in tf.data's thread
    return _made(strategy, shared(strategy, source), prefetch, own_rows)


def _made(
    strategy: Any,
    source: EpochSource,
    prefetch: int,
    own_rows: Sequence[int] | Callable[[], Sequence[int]] | None,
) -> Any:
    """Return the dataset of a source, with what it is outside of training."""

    def make(source: EpochSource) -> Any:
        return formed(
            strategy, source, prefetch, lambda other: _made(strategy, other, prefetch, own_rows)
        )

    dataset = make(source)
    if own_rows is None:
        return dataset
    import tensorflow as tf

    together = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    rank = source.rank if together else 0

    def once() -> EvaluationView:
        known = own_rows() if callable(own_rows) else own_rows
        rows = known if together else [known[source.rank]]
        return EvaluationView(source.complete().in_order(rows[rank], rows), make, rows)

    return attach(dataset, once if callable(own_rows) else once())
