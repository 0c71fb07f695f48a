"""The patches for tf_keras (seen in 2.21.0). Imported after tf_keras."""

from __future__ import annotations

import contextlib
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorflow as tf
from tf_keras.src.engine import data_adapter, training
from tf_keras.src.utils import tf_utils

from gridflow._keras.patches.bugs import aliasing, tables
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator

# No probe makes a tensor, see `keras3`.
_BATCHES = 3


class _ProbeDataset(tf.distribute.DistributedDataset):  # type: ignore[misc]
    """A distributed dataset of known length that counts its iterations."""

    element_spec = (tf.TensorSpec([1, 1]),)
    cardinality = _BATCHES

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter(range(_BATCHES))


# --- epochs --------------------------------------------------------------------------------


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


# --- train_on_batch and test_on_batch: what the workers found is added up ------------------------


class _OneBatch:
    """What tf_keras asks of a model with several replicas to test on a batch; its loss is 1."""

    metrics_names: Final = ("loss",)
    distribute_strategy = SimpleNamespace(
        num_replicas_in_sync=2,
        scope=contextlib.nullcontext,
        experimental_distribute_dataset=lambda dataset: [dataset],
    )
    _assert_compile_was_called = _check_call_args = reset_metrics = lambda *_: None

    def make_test_function(self) -> Any:
        """Return a function whose logs are sums over the replicas."""
        return lambda _: {"loss": 2.0}

    def get_metrics_result(self) -> dict[str, float]:
        """Return the results of the metrics over all replicas."""
        return {"loss": 1.0}

    _validate_and_get_metrics_result = training.Model._validate_and_get_metrics_result


def _logs_of_a_batch_are_added_up() -> bool:
    with tf.Graph().as_default():  # the batch becomes a tensor
        batch = np.zeros((1, 1))
        logs = training.Model.test_on_batch(_OneBatch(), batch, return_dict=True)
    return bool(logs["loss"] == _OneBatch().make_test_function()(None)["loss"])


def _patch_logs_of_a_batch() -> None:
    for name in ("train_on_batch", "test_on_batch"):
        _ask_the_metrics(name)


def _ask_the_metrics(name: str) -> None:
    parameters = inspect.signature(getattr(training.Model, name))

    def on_batch(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.distribute_strategy.num_replicas_in_sync == 1:
            return original(self, *args, **kwargs)
        given = parameters.bind(self, *args, **kwargs)
        as_dict = given.arguments.get("return_dict", False)
        given.arguments["return_dict"] = True
        # fit and evaluate do the same at the end.
        logs = self._validate_and_get_metrics_result(original(*given.args, **given.kwargs))
        logs = tf_utils.sync_to_numpy_or_python_type(logs)
        return logs if as_dict else training.flatten_metrics_in_order(logs, self.metrics_names)

    wrap(training.Model, name, on_batch, Layer.BUG)


PATCHES: Final = (
    Patch(
        "epochs",
        "tf_keras",
        "the first epoch starts its data twice",
        _epochs_begin_twice,
        _patch_epochs,
    ),
    Patch(
        "logs of a batch",
        "tf_keras",
        "train_on_batch and test_on_batch return N times the losses and metrics with N workers",
        _logs_of_a_batch_are_added_up,
        _patch_logs_of_a_batch,
    ),
    aliasing.fix("tf_keras"),
    tables.fix("tf_keras"),
)
