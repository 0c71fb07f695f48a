"""Distributed datasets, for the patches of both flavours. Imports TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib  # the public API can't map distributed datasets

from gridflow._feed.dataset.evaluation_view import view_of
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


def is_distributed(dataset: object) -> bool:
    """Return whether a dataset is one that a strategy has already distributed."""
    return isinstance(dataset, tf.distribute.DistributedDataset)


def check_scope(dataset: Any, strategy: Any) -> None:
    """Reject a model that doesn't belong to the strategy that distributed its data.

    Raises
    ------
    InvalidArgument
        The model was created outside the strategy's scope.
    """
    made_by = getattr(dataset, "_strategy", None)
    if is_distributed(dataset) and made_by is not None and made_by is not strategy:
        raise InvalidArgument(
            "the model was created outside the strategy's scope, so it can't take batches of "
            f"{type(made_by).__name__}. Create and compile it inside: with ctx.strategy.scope(): "
            "model = …; model.compile(…)."
        )


def map_distributed(dataset: Any, function: Callable[..., Any]) -> Any:
    """Return a distributed dataset with a function applied to its batches.

    Parameters
    ----------
    dataset : tf.distribute.DistributedDataset
        From ``distribute_datasets_from_function`` or ``experimental_distribute_dataset``.
    function : callable
        As for ``tf.data.Dataset.map``; it sees one replica's part of each batch.
    """
    changed = _changed(dataset, lambda part: part.map(function))
    if changed is None:
        raise InvalidArgument(
            f"class_weight isn't supported for a {type(dataset).__name__}. Add the weights to the "
            "dataset as a third component, (x, y, sample_weight).",
        )
    return changed


def endless(dataset: Any, distributed: Any) -> Any:
    """Return the dataset for a fit with ``steps_per_epoch``, which starts over when it ends.

    This concerns datasets that workers read on their own, which end with the worker's epoch: Keras
    would end the training there. The user's own datasets keep their end, as in one process.

    Parameters
    ----------
    dataset
        As passed to ``fit``.
    distributed
        Keras's distributed version of it.

    Returns
    -------
    tf.data.Dataset, tf.distribute.DistributedDataset or None
        None if the dataset is left unchanged.
    """
    if isinstance(distributed, tf.data.Dataset):
        return distributed.repeat() if view_of(dataset) is not None else None
    if not isinstance(dataset, input_lib.DistributedDatasetsFromFunction):
        return None
    changed = _changed(distributed, lambda part: part.repeat())
    if changed is not None:
        changed._cardinality = tf.data.INFINITE_CARDINALITY
    return changed


def _changed(dataset: Any, change: Callable[[Any], Any]) -> Any:
    """Return a distributed dataset with changed parts, or None if that isn't possible."""
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
        return None
    mapped = [change(part) for part in parts]
    spec = input_lib._create_distributed_tensor_spec(dataset._strategy, mapped[0].element_spec)
    result = kind(
        input_workers=dataset._input_workers,
        strategy=dataset._strategy,
        components=mapped,
        element_spec=spec,
        options=dataset._options,
        **extra,
    )
    result._cardinality = dataset.cardinality
    return result


def with_order(dataset: Any, strategy: Any) -> Any:
    """Return a dataset of which each worker takes its part of every batch, not separate files.

    Otherwise the rows of a batch come from different files, and predictions are out of order.
    tf_keras does this by itself.
    """
    policies = tf.data.experimental.AutoShardPolicy
    if (
        not isinstance(dataset, tf.data.Dataset)
        or not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        or dataset.options().experimental_distribute.auto_shard_policy
        not in {policies.AUTO, policies.FILE}
    ):
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policies.DATA
    return dataset.with_options(options)


def without_autoshard(options: tf.data.Options) -> tf.data.Options:
    """Return options with autoshard switched off."""
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def steps_after_distribution(strategy: Any, dataset: Any) -> int | None:
    """Return the steps of an epoch if they differ from the batches of the dataset, else None.

    Without autoshard, each worker reads the whole dataset. The strategy splits every batch into one
    piece per worker, because a batch is meant for all of them. So a worker has `workers` times as
    many batches to train on as the dataset says.
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
