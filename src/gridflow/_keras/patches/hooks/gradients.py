"""Gradients and losses of Keras 3 where each rank's step has its own part of a batch.

On TensorFlow and PyTorch. Keras sums gradients last, after they are clipped, checked and
accumulated; here they are averaged before anything else is done with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from keras.src.optimizers import base_optimizer, loss_scale_optimizer

from gridflow._keras.patches.bugs import keras3_losses
from gridflow._keras.patches.methods import Layer, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_SCALING: Final = loss_scale_optimizer.LossScaleOptimizer
#: On an optimizer: whether its current loss has been divided among the ranks.
_DIVIDED: Final = "_gridflow_divided"


class Ranks(Protocol):
    """What a backend knows of the ranks in a step.

    `size`: How many there are.
    `has_summed`: Whether the gradients that an optimizer has are those of all ranks.
    `averages`: Whether a step's gradients are means over all rows, and not sums.
    """

    @property
    def size(self) -> int: ...

    @property
    def has_summed(self) -> bool: ...

    @property
    def averages(self) -> bool: ...

    def mean_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the gradients of all ranks."""
        ...

    def after_sum(self) -> AbstractContextManager[None]:
        """Return a context in which an optimizer's gradients are those of all ranks."""
        ...


def install(current: Callable[[], Ranks | None]) -> None:
    """Make optimizers average gradients, and losses divide by what counts on all ranks.

    `current`: Returns the ranks that make the step of this thread; None if it is alone.
    """

    def apply(
        original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> Any:
        found = current()
        if found is None or found.has_summed:
            return original(self, grads, trainable_variables)
        grads = found.mean_gradients(list(grads))
        if vars(self).pop(_DIVIDED, False):
            grads = [None if each is None else _times(each, found.size) for each in grads]
        with found.after_sum():
            return original(self, grads, trainable_variables)

    def scale_loss(original: Any, self: Any, loss: Any) -> Any:
        scaled, found = original(self, loss), current()
        if found is None or not found.averages:
            return scaled
        # A part's gradients are larger than those of all rows: float16 must overflow where it does
        # in one process.
        vars(self)[_DIVIDED] = True  # bypasses Keras's __setattr__
        return scaled / found.size

    for kind in (base_optimizer.BaseOptimizer, _SCALING):
        wrap(kind, "apply", apply, Layer.ROWS)
    wrap(_SCALING, "scale_loss", scale_loss, Layer.ROWS)
    keras3_losses.install()


def _times(grad: Any, factor: int) -> Any:
    if not hasattr(grad, "dense_shape"):
        return grad * factor
    return type(grad)(grad.values * factor, grad.indices, grad.dense_shape)
