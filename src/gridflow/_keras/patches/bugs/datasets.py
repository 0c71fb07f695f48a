"""What the patches of both flavours need to know about distributed datasets. Imports TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib  # the public API can't map what is distributed

from gridflow._feed.dataset.evaluation_view import view_of
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable


def is_distributed(dataset: object) -> bool:
    """Return whether a dataset is one that a strategy has already distributed."""
    return isinstance(dataset, tf.distribute.DistributedDataset)


def check_scope(dataset: Any, strategy: Any) -> None:
    """Refuse a model that isn't the strategy's with data that are.

    Raises
    ------
    InvalidArgument
        The model was made outside of the strategy's scope.
    """
    made_by = getattr(dataset, "_strategy", None)
    if is_distributed(dataset) and made_by is not None and made_by is not strategy:
        raise InvalidArgument(
            "the model was made outside of the strategy's scope, so it can't take the batches of "
            f"{type(made_by).__name__}: make and compile it inside, "
            "with ctx.strategy.scope(): model = …; model.compile(…)."
        )


def map_distributed(dataset: Any, function: Callable[..., Any]) -> Any:
    """Return a distributed dataset whose batches went through a function.

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
            f"class_weight can't be applied to a {type(dataset).__name__}. Put the weights into "
            "the dataset as a third component, (x, y, sample_weight).",
        )
    return changed


def endless(dataset: Any, distributed: Any) -> Any:
    """Return the dataset of a fit with ``steps_per_epoch``, so that it begins again when it ends.

    That goes for what workers read on their own, which ends with an epoch of theirs: Keras would
    end the training there. What the user made keeps its end, as in one process.

    Parameters
    ----------
    dataset
        As it was given to ``fit``.
    distributed
        What Keras has made of it.

    Returns
    -------
    tf.data.Dataset, tf.distribute.DistributedDataset or None
        None where the dataset stays as it is.
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
    """Return a distributed dataset of changed parts, None if that can't be done."""
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
    """Return a dataset of which each worker takes its part of every batch, not files of its own.

    Else the rows of a batch are those of different files, and so are what is predicted of them:
    out of order. tf_keras does this by itself.
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
