"""What Keras 3 needs under gridflow's strategy (`gridflow._keras.group`).

Each hook says why no strategy could do it.
"""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as trainers

import keras
from gridflow._keras import group
from gridflow._keras.group import steps
from gridflow._keras.group.strategy import current
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import gradients, predictions
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

_TRAINER: Final = private_parts.trainer()


def _average() -> None:
    gradients.install(current)


def _has_no_call(model: Any) -> bool:
    """Return whether a model only contains others, which its train_step calls (a GAN)."""
    return type(model).call is keras.Model.call


def _symbol(spec: Any) -> Any:
    if spec is None or isinstance(spec, tf.NoneTensorSpec | tf.OptionalSpec):
        return None
    return SimpleNamespace(shape=spec.shape, dtype=spec.dtype)


def _all_shapes_known(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank is not None


def _can_be_built_ahead(model: Any, specs: Any) -> bool:
    """Return whether a model can be built without a batch."""
    shapes_known = all(_all_shapes_known(spec) for spec in tf.nest.flatten(specs))
    return shapes_known and not _has_no_call(model)


def _build_from_specs(model: Any, specs: Any) -> None:
    """Build a model and what it was compiled with, without a batch; as far as they aren't yet."""
    batch = tf.nest.map_structure(_symbol, specs)
    with model.distribute_strategy.scope():
        private_parts.build(model, batch)


def _has_strategy(model: Any) -> bool:
    with model.distribute_strategy.scope():
        return bool(tf.distribute.has_strategy())  # not the one that TensorFlow has by default


def _build_without_a_batch() -> None:
    """Keras reads a batch to build the model, and loses it; a step can build the model as well.

    A step that creates variables is traced twice.
    """

    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if iterator is None or not _has_strategy(self):
            original(self, iterator=iterator, data_batch=data_batch)
            return
        specs = iterator._distributed_dataset.element_spec
        if _can_be_built_ahead(self, specs):
            _build_from_specs(self, specs)
        elif not group.is_of(self.distribute_strategy):
            original(self, iterator=iterator)

    wrap(_TRAINER, "_maybe_symbolic_build", build, Layer.BUG)


def _refuse_several_devices() -> None:
    """Keras 3 doesn't support several replicas in a process: what it computes there differs."""

    def refusing(name: str) -> Callable[..., Any]:
        def refused(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            strategy = self.distribute_strategy
            replicas = 1 if group.is_of(strategy) else strategy.num_replicas_in_sync
            if replicas > 1:
                raise InvalidArgument(
                    f"model.{name}() of Keras 3 trains on one device in a process, and "
                    f"{type(strategy).__name__} has {replicas} here. Start a worker for each "
                    "device: TensorflowDistributor(num_workers=8, gpus=1). Loops of your own and "
                    "tf_keras work with it."
                )
            return original(self, *args, **kwargs)

        return refused

    for name in ("fit", "evaluate", "train_on_batch", "test_on_batch", "predict_on_batch"):
        wrap(_TRAINER, name, refusing(name), Layer.CHECK)


def _compile_in_parts() -> None:
    """Keras compiles a step as a whole, with the exchange in it."""

    class _AsParts:
        """A model whose steps aren't compiled here, but in their parts."""

        jit_compile = False

        def __init__(self, model: Any) -> None:
            self._model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self._model, name)

    def make_function(original: Any, self: Any, step_function: Any) -> Any:
        strategy = self.distribute_strategy
        is_groups = group.is_of(strategy) and strategy.extended.exchange.size > 1
        is_in_parts = is_groups and steps.is_compiled(step_function, self)
        return original(_AsParts(self) if is_in_parts else self, step_function)

    wrap(_TRAINER, "_make_function", make_function, Layer.BUG)


def _predict_for_all() -> None:
    predictions.of_all_ranks(_TRAINER, trainers)


def _predict_a_batch_alone() -> None:
    """Each rank has all rows of a batch, and perhaps only one predicts them."""
    make = _TRAINER.make_predict_function
    #: By model: the function that gathers predictions, which Keras drops when the model changes,
    #: and the one that doesn't.
    functions: Any = weakref.WeakKeyDictionary()

    def predict_on_batch(original: Any, self: Any, x: Any) -> Any:
        if not group.is_of(self.distribute_strategy):
            return original(self, x)
        self.make_predict_function()
        known, function = functions.get(self, (None, None))
        if known is not self.predict_function:
            alone = _Alone(self)
            make(alone)
            function = alone.predict_function
            functions[self] = self.predict_function, function
        # In a list, as Keras passes the batches of several steps.
        found = function([(x,)])
        return tf.nest.map_structure(trainers.convert_to_np_if_not_ragged, found)

    wrap(_TRAINER, "predict_on_batch", predict_on_batch, Layer.BUG)


class _Alone:
    """A model whose ``predict_function`` gathers nothing."""

    predict_function = None

    def __init__(self, model: Any) -> None:
        self._model = model
        self.distribute_strategy = SimpleNamespace(run=model.distribute_strategy.run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


HOOKS: Final = tuple(
    Hook(name, install)
    for name, install in {
        "gradients and losses are those of all ranks' rows": _average,
        "models are built without a batch": _build_without_a_batch,
        "several devices in a process are refused": _refuse_several_devices,
        "XLA compiles steps on both sides of the exchange": _compile_in_parts,
        "each rank has the predictions of all rows": _predict_for_all,
        "a batch is predicted on each rank": _predict_a_batch_alone,
    }.items()
)
