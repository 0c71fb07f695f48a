"""A source's dataset for a strategy: mirrored ones get the methods of plain datasets."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gridflow._feed.dataset.epochs import EpochSource
from gridflow._feed.dataset.evaluation_view import EvaluationView, attach
from gridflow._feed.dataset.source import SOURCE, chain, is_mirrored, shared
from gridflow._feed.selection import select
from gridflow._spec.option_checks import whole_number
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._feed.dataset.reading import Reader
    from gridflow._feed.dataset.source import Source
    from gridflow._feed.selection import Columns, Weights

__all__ = ["distribute", "formed"]

S = TypeVar("S", bound="Source")

#: Alternatives to methods that only plain datasets have.
_INSTEAD: Final = {
    "batch": "pass batch_size= to ctx.dataset()",
    "filter": "choose the rows in the DataFrame",
    "prefetch": "pass prefetch= to ctx.dataset()",
    "repeat": "each epoch of fit starts over, and with steps_per_epoch= the rows repeat",
    "shuffle": "pass shuffle=True to ctx.dataset()",
    "unbatch": "map(function) gets whole batches",
    "zip": "join the DataFrames before run(data=…)",
}


class _Cardinality(int):
    """A number of steps: a property of distributed datasets, and a method of all others."""

    def __call__(self) -> Any:
        """Return it as ``tf.data.Dataset.cardinality`` does."""
        import tensorflow as tf

        return tf.constant(int(self), tf.int64)


@functools.cache
def _fed(base: Any) -> Any:
    """Return a subclass of TensorFlow's own class, by which tf_keras recognises datasets."""

    class FedDataset(base):  # type: ignore[misc]
        """Batches of this rank, one for each of its replicas in a step.

        Each iteration is an epoch.
        """

        gridflow_source: Source
        again: Callable[[Source], Any]
        #: The plan gives all ranks equal steps, so none must ask the others in each step whether
        #: they have a batch, too.
        _enable_get_next_as_optional = property(lambda _: False)

        @property
        def cardinality(self) -> int:
            """Steps of an epoch.

            TensorFlow reports the elements of the inner dataset, of which a step takes one per
            replica; Keras would continue past the end.
            """
            known = int(super().cardinality)
            return _Cardinality(known // self.gridflow_source.replicas if known > 0 else known)

        def __getattr__(self, name: str) -> Any:
            instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(
                f"the dataset of a mirrored strategy has no attribute {name!r}{instead}"
            )

        def __iter__(self) -> Any:
            """Return an epoch's batches, each split for the replicas."""
            here = inspect.currentframe()  # Keras's layers iterate like plain loops
            caller = here.f_back if here is not None else None
            if caller is not None and caller.f_code.co_name == "adapt":
                raise InvalidArgument(
                    "the dataset of a mirrored strategy gives each replica a part of this rank's "
                    "rows. For layer.adapt(), use ctx.adapt_dataset(name, features=…): the rows "
                    "of all ranks, the same on each."
                )
            return super().__iter__()

        def __len__(self) -> int:
            """Return the steps of an epoch, the same on all ranks."""
            if self.cardinality < 0:
                raise TypeError("the number of steps isn't known before all rows have arrived.")
            return self.cardinality

        def map(self, function: Callable[..., Any]) -> Any:
            """Return a dataset with a function applied to its batches.

            Parameters
            ----------
            function : callable
                As for ``tf.data.Dataset.map``: it gets ``x``, ``x, y`` or ``x, y, sample_weight``
                of a batch, or of one replica's part of it.
            """
            before = self.gridflow_source.function
            return self.again(replace(self.gridflow_source, function=chain(before, function)))

        def take(self, steps: int) -> Any:
            """Return a dataset of the first steps of each epoch."""
            steps = whole_number("steps", steps, 1)
            if self.cardinality >= 0:
                steps = min(steps, len(self))
            return self.again(replace(self.gridflow_source, first_steps=steps))

    return FedDataset


def formed(strategy: Any, source: S, prefetch: int, again: Callable[[S], Any]) -> Any:
    """Return the dataset of a source in the form for the strategy's ``fit`` and ``run``.

    Mirrored strategies get a distributed dataset, which TensorFlow neither shards nor rebatches;
    all others, and None, get the plain one. ``again`` creates a similar dataset from another
    source.
    """
    if not is_mirrored(strategy):
        return source.dataset(prefetch)
    found: Any = strategy.distribute_datasets_from_function(lambda _: source.dataset(prefetch))
    base: Any = type(found)
    found.__class__ = _fed(base)
    setattr(found, SOURCE, source)
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

    Parameters
    ----------
    strategy : tf.distribute.Strategy or None
    reader : Reader
        The rank's rows of the dataset; of those that arrive, a spool that grows and has a row.
    features, label, sample_weight
        The columns, see `gridflow._feed.selection`. Elements are ``x``, a tensor or a dict,
        ``(x, y)`` or ``(x, y, weight)``.
    prefetch : int, default 2
        Batches that are made ahead.
    own_rows : sequence of int, or what returns it; optional
        Rows of each rank that count outside of training. With them the dataset knows its
        `gridflow._feed.dataset.evaluation_view.EvaluationView`: at once, or found out when it is
        needed.
    **options
        Fields of `EpochSource`.

    Raises
    ------
    SchemaError
        When a column doesn't exist or doesn't fit.
    InvalidArgument
        See `gridflow._feed.dataset.source.shared`.
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
