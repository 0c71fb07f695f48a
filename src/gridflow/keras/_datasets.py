"""What the cures of both flavours need to know about distributed datasets. Imports TensorFlow."""

# ruff: noqa: SLF001  (what is cured lies in the private parts)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib  # the public API can't map what is distributed

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


def is_distributed(dataset: object) -> bool:
    """Return whether a dataset is one that a strategy has already distributed."""
    return isinstance(dataset, tf.distribute.DistributedDataset)


def map_distributed(dataset: Any, function: Callable[..., Any]) -> Any:
    """Return a distributed dataset whose batches went through a function.

    Parameters
    ----------
    dataset : tf.distribute.DistributedDataset
        From ``distribute_datasets_from_function`` or ``experimental_distribute_dataset``.
    function : callable
        As for ``tf.data.Dataset.map``; it sees one replica's part of each batch.
    """
    if isinstance(dataset, input_lib.DistributedDatasetsFromFunction):
        parts, kind = dataset._datasets, input_lib.DistributedDatasetsFromFunction
        extra = {"replica_order": dataset._replica_order}
    elif isinstance(dataset, input_lib.DistributedDataset):
        parts, kind = dataset._cloned_datasets, input_lib.DistributedDataset
        extra = {
            "replica_order": dataset._replica_order,
            "enable_get_next_as_optional": dataset._enable_get_next_as_optional,
        }
    else:
        raise InvalidArgument(
            f"class_weight can't be applied to a {type(dataset).__name__}. Put the weights into "
            "the dataset as a third component, (x, y, sample_weight).",
        )
    mapped = [part.map(function) for part in parts]
    spec = input_lib._create_distributed_tensor_spec(dataset._strategy, mapped[0].element_spec)
    result = kind(
        input_workers=dataset._input_workers,
        strategy=dataset._strategy,
        components=mapped,
        element_spec=spec,
        options=dataset._options,
        **extra,
    )
    result._cardinality = dataset._cardinality
    return result


def without_autoshard(options: tf.data.Options) -> tf.data.Options:
    """Return options with autoshard switched off."""
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def steps_after_distribution(strategy: Any, dataset: Any) -> int | None:
    """Return the steps of an epoch where they aren't the batches of the dataset, else None.

    Without autoshard each worker reads the whole dataset. The strategy cuts every batch into one
    piece per worker, as a batch is meant for all of them, so a worker has `workers` times as many
    batches to train as the dataset says.
    """
    if is_distributed(dataset) or not isinstance(dataset, tf.data.Dataset):
        return None
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    if not strategy.extended._in_multi_worker_mode():
        return None
    policy = dataset.options().experimental_distribute.auto_shard_policy
    batches = int(dataset.cardinality())
    if policy != tf.data.experimental.AutoShardPolicy.OFF or batches < 0:
        return None
    return batches * int(strategy.extended._num_workers)
