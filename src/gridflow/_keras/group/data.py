"""The part of a dataset that is one rank's, as a plain dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
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


def is_part(dataset: Any) -> bool:
    """Return whether a dataset, or one that it is made of, holds this rank's rows already."""
    return any(
        getattr(each, _MARK, False) or source_of(each) is not None for each in inputs_of(dataset)
    )


def distributed(dataset: Any, strategy: Any, device: str, context: Any, options: Any) -> Any:
    """Return this rank's pieces of each batch; files, too, are dealt out as TensorFlow does it.

    Parameters
    ----------
    dataset : tf.data.Dataset
        Of batches for all ranks, the same on each.
    strategy : tf.distribute.Strategy
    device : str
        Where this rank computes.
    context : tf.distribute.InputContext
    options : tf.distribute.InputOptions
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
    return _marked(_of_known_length(mine, dataset, context.num_input_pipelines))


def _of_known_length(mine: Any, dataset: Any, ranks: int) -> Any:
    """Return a dataset that knows its length, if that of the whole is known."""
    batches = int(dataset.cardinality())
    if int(mine.cardinality()) >= 0 or batches < 0:
        return mine
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in {_POLICIES.AUTO, _POLICIES.FILE}:
        return mine  # files may be of different lengths
    steps = batches * ranks if policy == _POLICIES.OFF else batches
    return mine.apply(tf.data.experimental.assert_cardinality(steps))


def from_function(make: Callable[[Any], Any], context: Any, exchange: Any) -> Any:
    """Return the dataset of this rank that a function makes, as long as that of any rank."""
    mine = make(context)
    steps = exchange.concatenated(tf.constant([int(mine.cardinality())])).numpy()
    missing = int(steps.max() - steps[exchange.rank])
    if missing and (steps >= 0).all():
        mine = mine.concatenate(_without_rows(mine.element_spec).repeat(missing))
    return _marked(mine)


def _without_rows(spec: Any) -> Any:
    nothing = tf.nest.map_structure(
        lambda each: tf.zeros([0, *(size or 0 for size in each.shape[1:])], each.dtype), spec
    )
    return tf.data.Dataset.from_tensors(nothing)


def _marked(dataset: Any) -> Any:
    options = tf.data.Options()
    # Its thread is waited for when an iterator ends, for up to half a second.
    options.autotune.enabled = False
    dataset = dataset.with_options(options)
    setattr(dataset, _MARK, True)
    setattr(dataset, _UNEVEN, True)
    return dataset
