"""The patch for sample weights by the names of outputs, of models that return a list.

Keras 3 brings labels that are a dict into the order of such outputs, but not their weights.
"""

from __future__ import annotations

from typing import Any

from keras.src.trainers.compile_utils import CompileLoss

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch


class _WeighedError(Exception):
    """Raised by the probe's loss, once Keras has found the weights of its output."""


def _looks_up_a_number() -> bool:
    """Return whether the weights of the first output are looked up by its number."""

    def loss(*_: Any) -> None:
        raise _WeighedError

    both = CompileLoss(None, output_names=["a", "b"])
    both.built = True  # without its metrics, which are tensors
    both._flat_losses = [CompileLoss.Loss((0,), loss, None, "a")]
    both._y_pred_build_structure = both._y_true_build_structure = [None, None]
    try:
        both.call([1, 1], [1, 1], {"a": 1, "b": 1})
    except KeyError:
        return True
    except _WeighedError:
        return False
    return False


def _patch() -> None:
    def call(original: Any, self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        names = self.output_names or ()
        is_by_name = isinstance(sample_weight, dict) and set(sample_weight) == set(names)
        if is_by_name and isinstance(y_pred, list | tuple):
            sample_weight = [sample_weight[name] for name in names]
        return original(self, y_true, y_pred, sample_weight)

    wrap(CompileLoss, "call", call, Layer.BUG)


def fix() -> Patch:
    return Patch(
        "weights by name",
        "keras",
        "sample weights by output fail if the model returns its outputs as a list",
        _looks_up_a_number,
        _patch,
    )
