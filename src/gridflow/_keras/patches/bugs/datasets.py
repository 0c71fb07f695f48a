"""Distributed datasets, for the patches of both flavours. Imports TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gridflow._feed.dataset.evaluation_view import view_of
from gridflow.errors import InvalidArgument


def check_scope(dataset: Any, strategy: Any) -> None:
    """Reject a model that doesn't belong to the strategy that distributed its data.

    Raises `InvalidArgument`: The model was created outside the strategy's scope.
    """
    made_by = getattr(dataset, "_strategy", None)
    is_distributed = isinstance(dataset, tf.distribute.DistributedDataset)
    if is_distributed and made_by is not None and made_by is not strategy:
        raise InvalidArgument(
            "the model was created outside the strategy's scope, so it can't take batches of "
            f"{type(made_by).__name__}. Create and compile it inside: with ctx.strategy.scope(): "
            "model = …; model.compile(…)."
        )


def endless(dataset: Any, distributed: Any) -> Any:
    """Return the dataset for a fit with ``steps_per_epoch``, which starts over when it ends.

    This concerns datasets that workers read on their own, which end with the worker's epoch: Keras
    would end the training there. The user's own datasets keep their end, as in one process.

    `dataset`: As passed to ``fit``.
    `distributed`: Keras's distributed version of it.
    Returns: None if the dataset is left unchanged.
    """
    is_plain = isinstance(distributed, tf.data.Dataset) and view_of(dataset) is not None
    return distributed.repeat() if is_plain else None
