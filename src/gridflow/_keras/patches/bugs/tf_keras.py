"""The patches for tf_keras (seen in 2.21.0). Imported after tf_keras."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tf_keras.src.engine import data_adapter

from gridflow._keras import group
from gridflow._keras.patches.bugs import aliasing, tables, tf_keras_replicas
from gridflow._keras.patches.bugs.datasets import (
    is_distributed,
    map_distributed,
    steps_after_distribution,
    without_autoshard,
)
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator

# No probe makes a tensor, see `keras3`.
_BATCHES = 3
_CONFIGURE: Final = "_configure_dataset_and_inferred_steps"


class _ProbeDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """A distributed dataset of known length that counts its iterations."""

    element_spec = (tf.TensorSpec([1, 1]),)
    cardinality = _BATCHES

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter(range(_BATCHES))


# --- a distributed dataset is refused without steps_per_epoch, or begun too often -------------


def _distributed_needs_steps() -> bool:
    # tf_keras recognises distributed datasets by these two TensorFlow classes, not by the public
    # base class, so the adapter is asked directly.
    try:
        adapter = object.__new__(data_adapter.DatasetAdapter)
        adapter._dataset = _distributed_shell()
        adapter._user_steps = None
        adapter._validate_args(None, None, None, None)
    except ValueError:
        return True
    return False


def _distributed_shell() -> Any:
    shell = object.__new__(input_lib.DistributedDatasetsFromFunction)
    shell._built = True
    shell._cardinality = _BATCHES
    return shell


def _patch_steps() -> None:
    adapter = data_adapter.DatasetAdapter
    handler = data_adapter.DataHandler

    def validate_args(
        validate: Any, self: Any, y: Any, weights: Any, steps: Any, pss_evaluation_shards: Any
    ) -> None:
        unlimited = is_distributed(self._dataset) and steps is None
        # tf_keras itself uses -1 for "as many as there are".
        steps = -1 if unlimited else steps
        validate(self, y, weights, steps, pss_evaluation_shards)

    def should_recreate_iterator(recreate: Any, self: Any) -> bool:
        if is_distributed(self._dataset):
            return self._user_steps is None
        return bool(recreate(self))

    def infer_steps(infer: Any, self: Any, steps: int | None, dataset: Any) -> int | None:
        if steps is None and is_distributed(dataset):
            known = int(dataset.cardinality)
            return known if known >= 0 else None
        inferred: int | None = infer(self, steps, dataset)
        return inferred

    wrap(adapter, "_validate_args", validate_args, Layer.BUG)
    wrap(adapter, "should_recreate_iterator", should_recreate_iterator, Layer.BUG)
    wrap(handler, "_infer_steps", infer_steps, Layer.BUG)


def _probe_handler() -> Any:
    handler = object.__new__(data_adapter.DataHandler)
    vars(handler).update(
        _dataset=_ProbeDataset(),
        _adapter=SimpleNamespace(
            should_recreate_iterator=lambda: True,
            on_epoch_end=lambda: None,
            get_size=lambda: _BATCHES,
        ),
        _initial_epoch=0,
        _epochs=2,
        _initial_step=0,
        _inferred_steps=_BATCHES,
        _insufficient_data=False,
        _steps_per_epoch=None,
        _steps_per_execution=SimpleNamespace(numpy=lambda: SimpleNamespace(item=lambda: 1)),
    )
    return handler


def _epochs_begin_twice() -> bool:
    handler = _probe_handler()
    epochs = list(handler.enumerate_epochs())
    return bool(handler._dataset.begun > len(epochs))


def _patch_epochs() -> None:
    def enumerate_epochs(original: Any, self: Any) -> Iterator[tuple[int, Any]]:
        if not self._adapter.should_recreate_iterator():
            yield from original(self)
            return
        with self._truncate_execution_to_epoch():
            for epoch in range(self._initial_epoch, self._epochs):
                if self._insufficient_data:
                    break
                if epoch > self._initial_epoch and isinstance(self._dataset, tf.data.Dataset):
                    steps = self._infer_steps(self._steps_per_epoch, self._dataset)
                    self._inferred_steps = self._inferred_steps if steps is None else steps
                yield epoch, iter(self._dataset)
                self._adapter.on_epoch_end()

    wrap(data_adapter.DataHandler, "enumerate_epochs", enumerate_epochs, Layer.BUG)


# --- class_weight with a distributed dataset, and autoshard OFF -------------------------------


def _configured(strategy: Any, dataset: Any, class_weight: dict[int, float] | None) -> Any:
    handler = object.__new__(data_adapter.DataHandler)
    handler._adapter = SimpleNamespace(get_dataset=lambda: dataset, get_size=lambda: None)
    handler._validate_data_handler = lambda: None
    handler._configure_dataset_and_inferred_steps(strategy, None, None, class_weight, False)
    return handler


def _class_weight_needs_map() -> bool:
    shell = _distributed_shell()
    try:
        with tf.Graph().as_default():  # the weights become a tensor
            _configured(tf.distribute.get_strategy(), shell, {0: 1.0})
    except AttributeError as error:
        if error.obj is not shell:
            raise
        return error.name == "map"  # otherwise the inner datasets are asked for
    return False


def _patch_class_weight() -> None:
    def configure(
        original: Any, self: Any, strategy: Any, x: Any, steps: Any, class_weight: Any, *rest: Any
    ) -> None:
        dataset = self._adapter.get_dataset()
        if class_weight and is_distributed(dataset):
            to_weights = data_adapter._make_class_weight_map_fn(class_weight)
            self._adapter._dataset = map_distributed(dataset, to_weights)
            class_weight = None
        original(self, strategy, x, steps, class_weight, *rest)

    wrap(data_adapter.DataHandler, _CONFIGURE, configure, Layer.BUG)


class _Size(int):
    """A number with a ``numpy`` method, like a tensor."""

    __slots__ = ()

    def numpy(self) -> np.int64:
        """Return the value."""
        return np.int64(self)


class _WithoutAutoshard(tf.data.Dataset):  # type: ignore[misc]
    """What tf_keras asks of a dataset before it reads one: three batches, autoshard off."""

    element_spec = (tf.TensorSpec([1, 1]),)
    _inputs = ()

    def __init__(self) -> None:
        """Create no variant tensor."""

    def cardinality(self) -> Any:
        """Return the number of batches before distribution."""
        return _Size(_BATCHES)

    def options(self) -> tf.data.Options:
        """Return options with autoshard off."""
        return without_autoshard(tf.data.Options())


class _TwoWorkers(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
    """Claims to be one of two workers, without a cluster."""

    extended = SimpleNamespace(_in_multi_worker_mode=lambda: True, _num_workers=2)

    def __init__(self) -> None:
        """Don't start a cluster as the base class does."""


def _counts_before_distribution() -> bool:
    handler = _configured(_TwoWorkers(), _WithoutAutoshard(), None)
    return bool(handler._inferred_steps == _BATCHES)


def _patch_counting() -> None:
    def configure(
        original: Any, self: Any, strategy: Any, x: Any, steps_per_epoch: Any, *rest: Any
    ) -> None:
        original(self, strategy, x, steps_per_epoch, *rest)
        steps = steps_after_distribution(strategy, self._adapter.get_dataset())
        if steps is not None and steps_per_epoch is None:
            self._inferred_steps = steps

    wrap(data_adapter.DataHandler, _CONFIGURE, configure, Layer.BUG)


#: What only strategies with several replicas in a process need.
_OF_REPLICAS: Final = {
    *("distributed_without_steps", "class_weight", "autoshard_off", "own steps", "masked losses"),
}
_ALL: Final = (
    Patch(
        "distributed_without_steps",
        "tf_keras",
        "a distributed dataset is rejected without steps_per_epoch",
        _distributed_needs_steps,
        _patch_steps,
    ),
    Patch(
        "epochs",
        "tf_keras",
        "the first epoch starts its data twice",
        _epochs_begin_twice,
        _patch_epochs,
    ),
    Patch(
        "class_weight",
        "tf_keras",
        "class_weight fails with a distributed dataset",
        _class_weight_needs_map,
        _patch_class_weight,
    ),
    Patch(
        "autoshard_off",
        "tf_keras",
        "only the first 1/workers of a dataset with autoshard OFF is used for training",
        _counts_before_distribution,
        _patch_counting,
    ),
    aliasing.fix("tf_keras"),
    tables.fix("tf_keras"),
    *tf_keras_replicas.PATCHES,
)
PATCHES: Final = group.elsewhere(_ALL, _OF_REPLICAS)
