"""The part of a dataset that is one rank's, as a plain dataset.

All ranks make equal steps. A rank whose rows end before those of others gets batches without rows.
Where the lengths aren't known beforehand, ranks ask each other in each step whether one of them has
rows, and end together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib

from gridflow._feed.dataset.source import source_of
from gridflow._keras.patches.private_parts import inputs_of, part

if TYPE_CHECKING:
    from collections.abc import Callable

_POLICIES: Final = tf.data.experimental.AutoShardPolicy
#: On a dataset: that it holds one rank's rows.
_MARK: Final = "_gridflow_part"
#: On a dataset, as on TensorFlow's own: whether this rank may get batches without rows.
_UNEVEN: Final = "_enable_get_next_as_optional"
#: On a dataset that ends on all ranks at once: the same without the question whether it ends.
_ENDLESS: Final = "_gridflow_endless"
#: The exchange of this process's group, by which iterators ask the other ranks.
_exchange: Any = None


def is_part(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is made of, holds this rank's rows already."""
    return any(
        getattr(each, _MARK, False) or source_of(each) is not None for each in inputs_of(dataset)
    )


def distributed(
    dataset: Any, strategy: Any, device: str, context: Any, options: Any, exchange: Any
) -> Any:
    """Return this rank's pieces of each batch; files, too, are dealt out as TensorFlow does it.

    `dataset`: Of batches for all ranks, the same on each.
    `device`: Where this rank computes.
    """
    made = input_lib.DistributedDataset(
        input_lib.InputWorkers([("/device:CPU:0", (device,))]),
        strategy,
        dataset,
        num_replicas_in_sync=context.num_replicas_in_sync,
        input_context=context,
        options=options,
    )
    (mine,) = part(made, "_cloned_datasets")
    batches = int(dataset.cardinality())
    policy = dataset.options().experimental_distribute.auto_shard_policy
    is_known = int(mine.cardinality()) >= 0 or batches < 0
    if not is_known and policy not in {_POLICIES.AUTO, _POLICIES.FILE}:
        steps = batches * context.num_input_pipelines if policy == _POLICIES.OFF else batches
        mine = mine.apply(tf.data.experimental.assert_cardinality(steps))
    if policy == _POLICIES.DATA:  # a piece of each batch
        return _marked(mine)
    return _even(mine, exchange)


def from_function(make: Callable[[Any], Any], context: Any, exchange: Any) -> Any:
    """Return the dataset of this rank that a function makes, as long as that of any rank."""
    return _even(make(context), exchange)


def _even(mine: Any, exchange: Any) -> Any:
    """Return this rank's dataset, as long as those of the other ranks. All ranks must call it."""
    steps = exchange.concatenated(tf.constant([int(mine.cardinality())])).numpy()
    if (steps == tf.data.INFINITE_CARDINALITY).all():
        return _marked(mine)
    nothing = _without_rows(mine.element_spec)
    if (steps >= 0).all():
        missing = int(steps.max() - steps[exchange.place])
        return _marked(mine.concatenate(nothing.repeat(missing)) if missing else mine)
    return _ending_together(_told(mine, True).concatenate(_told(nothing, False).repeat()), exchange)


def _told(dataset: Any, is_there: bool) -> Any:
    """Return a dataset of pairs: whether a batch is one of this rank's, and the batch."""
    return dataset.map(lambda *batch: (tf.constant(is_there), _packed(batch)))


def _packed(batch: tuple[Any, ...]) -> Any:
    # TensorFlow passes the components of a tuple one by one.
    return batch[0] if len(batch) == 1 else batch


def _without_rows(spec: Any) -> Any:
    """Return a dataset of one batch without rows."""
    return tf.data.Dataset.from_tensors(tf.nest.map_structure(_nothing, spec))


def _nothing(spec: Any) -> Any:
    if spec is None or isinstance(spec, tf.NoneTensorSpec):
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        values = _nothing(tf.TensorSpec([None, *spec.shape[spec.ragged_rank + 1 :]], spec.dtype))
        for _ in range(spec.ragged_rank):
            splits = tf.zeros([1], spec.row_splits_dtype)
            values = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
        return values
    zeros = tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
    return tf.sparse.from_dense(zeros) if isinstance(spec, tf.SparseTensorSpec) else zeros


def _marked(dataset: Any) -> Any:
    options = tf.data.Options()
    # Its thread is waited for when an iterator ends, for up to half a second.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    setattr(dataset, _MARK, True)
    setattr(dataset, _UNEVEN, True)
    return dataset


# Ends ---------------------------------------------------------------------------------------------


def _ending_together(endless: Any, exchange: Any) -> Any:
    """Return a dataset that ends after the last batch of all ranks.

    Iterators ask in the order of the program, so that ranks ask in the same order. TensorFlow's own
    loops over a dataset ask while they get a batch.

    `endless`: Of what `_told` returns.
    """
    global _exchange  # noqa: PLW0603 (a process is in one group)
    _exchange = exchange
    ending = endless.take_while(lambda is_there, _: _anywhere(is_there) > 0)
    found = _marked(ending.map(lambda _, batch: batch))
    setattr(found, _ENDLESS, endless)
    found.__class__ = _together(type(found))
    return found


def _anywhere(is_there: Any) -> Any:
    """Return on how many ranks there is a batch."""
    (total,) = _exchange.sums([tf.cast(is_there, tf.int64)])
    return total


def _together(kind: Any) -> Any:
    class EndingTogether(kind):  # type: ignore[misc]
        """A dataset whose iterators ask the other ranks whether there are more rows."""

        def __iter__(self) -> Any:
            found = iter(getattr(self, _ENDLESS))
            found.__class__ = AskingIterator
            return found

        def map(self, function: Any, *args: Any, **kwargs: Any) -> Any:
            """Return a dataset that ends as this one does."""

            def mapped(is_there: Any, batch: Any) -> Any:
                parts = batch if isinstance(batch, tuple) else (batch,)
                return is_there, function(*parts)

            return _ending_together(getattr(self, _ENDLESS).map(mapped, *args, **kwargs), _exchange)

    return EndingTogether


def _stop_at_none(total: Any) -> Any:
    if total == 0:
        raise StopIteration
    return total


class AskingIterator(iterator_ops.OwnedIterator):  # type: ignore[misc]
    """An iterator that ends when no rank has another batch."""

    @property
    def element_spec(self) -> Any:
        return super().element_spec[1]

    def get_next(self) -> Any:
        """Return the next batch, which may have no rows here."""
        is_there, batch = super().get_next()
        total = _anywhere(is_there)
        if tf.executing_eagerly():
            if not int(total):
                raise tf.errors.OutOfRangeError(None, None, "no rank has another batch")
            return batch
        # TensorFlow makes its own end of data of the exception.
        asked = tf.numpy_function(_stop_at_none, [total], tf.int64)
        with tf.control_dependencies([asked]):
            return tf.nest.map_structure(tf.identity, batch, expand_composites=True)

    def get_next_as_optional(self) -> Any:
        """Return the next batch, if one of the ranks has one."""
        is_there, batch = super().get_next()
        return tf.cond(
            _anywhere(is_there) > 0,
            lambda: tf.experimental.Optional.from_value(batch),
            lambda: tf.experimental.Optional.empty(self.element_spec),
        )

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    @property
    def _type_spec(self) -> Any:
        return _AskingSpec(super().element_spec)


class _AskingSpec(iterator_ops.IteratorSpec):  # type: ignore[misc]
    """Makes functions that are traced see what kind of iterator they get."""

    __slots__ = ()

    @property
    def value_type(self) -> Any:
        return AskingIterator

    def _from_components(self, components: Any) -> Any:
        found = super()._from_components(components)
        found.__class__ = AskingIterator
        return found
