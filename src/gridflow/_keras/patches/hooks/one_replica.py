"""What Keras 3 needs under gridflow's strategy (`gridflow._keras.group`).

Each hook says why no strategy could do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src.backend.tensorflow import trainer as trainers
from keras.src.optimizers import base_optimizer, loss_scale_optimizer

from gridflow._keras import group
from gridflow._keras.group import steps
from gridflow._keras.group.strategy import current
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.bugs import keras3, keras3_losses
from gridflow._keras.patches.hooks import predictions
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAINER: Final = private_parts.trainer()
_SCALING: Final = loss_scale_optimizer.LossScaleOptimizer
#: On an optimizer: whether its current loss has been divided among the ranks.
_DIVIDED: Final = "_gridflow_divided"


def _average_gradients_first() -> None:
    """Keras sums gradients last, after they are clipped, checked and accumulated."""

    def apply(
        original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> Any:
        found = current()
        if found is None or found.has_summed:
            return original(self, grads, trainable_variables)
        grads = found.mean_gradients(list(grads))
        with found.after_sum():
            return original(self, grads, trainable_variables)

    for kind in (base_optimizer.BaseOptimizer, _SCALING):
        wrap(kind, "apply", apply, Layer.ROWS)


def _scale_parts() -> None:
    """Few rows have larger gradients than many; float16 must overflow where one process does."""

    def scale_loss(original: Any, self: Any, loss: Any) -> Any:
        scaled, found = original(self, loss), current()
        if found is None or found.step is None:
            return scaled
        vars(self)[_DIVIDED] = True  # bypasses Keras's __setattr__
        return scaled / tf.cast(found.exchange.size, scaled.dtype)

    def apply(
        original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> Any:
        found = current()
        if found is not None and vars(self).pop(_DIVIDED, False):
            grads = [None if each is None else _times(each, found.exchange.size) for each in grads]
        return original(self, grads, trainable_variables)

    wrap(_SCALING, "scale_loss", scale_loss, Layer.ROWS)
    wrap(_SCALING, "_tf_apply", apply, Layer.ROWS)


def _times(grad: Any, factor: int) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_times(grad.values, factor), grad.indices, grad.dense_shape)
    return grad * tf.cast(factor, grad.dtype)


def _build_without_a_batch() -> None:
    """Keras reads a batch to build the model, and loses it; a step can build the model as well.

    A step that creates variables is traced twice.
    """

    def build(original: Any, self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        if not group.is_of(self._distribute_strategy):
            original(self, iterator=iterator, data_batch=data_batch)
        elif iterator is not None:
            specs = iterator._distributed_dataset.element_spec
            if keras3.can_be_built_ahead(self, specs):
                keras3.build_from_specs(self, specs)

    wrap(_TRAINER, "_maybe_symbolic_build", build, Layer.BUG)


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
        is_in_parts = group.is_of(self.distribute_strategy) and steps.is_compiled(
            step_function, self
        )
        return original(_AsParts(self) if is_in_parts else self, step_function)

    wrap(_TRAINER, "_make_function", make_function, Layer.BUG)


def _predict_for_all() -> None:
    predictions.gather(trainers)


HOOKS: Final = tuple(
    Hook(name, install, group.is_chosen)
    for name, install in {
        "gradients are averaged before anything else is done": _average_gradients_first,
        "losses of float16 are scaled as in one process": _scale_parts,
        "losses divide by what counts on all ranks": keras3_losses.install,
        "models are built without a batch": _build_without_a_batch,
        "XLA compiles steps on both sides of the exchange": _compile_in_parts,
        "each rank has the predictions of all rows": _predict_for_all,
    }.items()
)
