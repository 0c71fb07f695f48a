"""Passes over data of TensorFlow's data service: no two have the same number of batches.

Keras takes the number of batches that the first epoch had for that of all others: it would end a
longer one before its end, and says of a shorter one that it ran out of data. How many a rank gets,
and how many rows the last batch of each data worker has, differs from pass to pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops import data_service_ops

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.private_parts import inputs_of
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Iterator


def keras3_hook(epochs: Any) -> Hook:
    """Return the hook for Keras 3's class of epochs."""

    def enumerate_iterator(original: Any, self: Any) -> Iterator[tuple[int, int, Any]]:
        if not self.steps_per_epoch and _is_served(getattr(self, "_distributed_dataset", None)):
            self._num_batches = None
            self._interrupted_warning = lambda: None
        return original(self)  # type: ignore[no-any-return]

    return _hook(epochs, "_enumerate_iterator", enumerate_iterator)


def tf_keras_hook(handler: Any) -> Hook:
    """Return the hook for tf_keras's class of epochs."""

    def enumerate_epochs(original: Any, self: Any) -> Iterator[tuple[int, Any]]:
        is_open = self._steps_per_epoch is None and _is_served(self._dataset)
        for epoch in original(self):
            if is_open:
                self._inferred_steps = None
            yield epoch

    return _hook(handler, "enumerate_epochs", enumerate_epochs)


def _hook(owner: Any, name: str, wrapper: Any) -> Hook:
    return Hook(
        "each pass over data of a data service has a length of its own",
        lambda: wrap(owner, name, wrapper, Layer.CHECK),
    )


def _is_served(dataset: Any) -> bool:
    """Return whether a dataset is made of data of a data service."""
    own = getattr(dataset, "_datasets", None) or [dataset]  # of a distributed dataset
    return any(
        isinstance(part, data_service_ops._DataServiceDatasetV2)
        for each in own
        if isinstance(each, tf.data.Dataset)
        for part in inputs_of(each)
    )
