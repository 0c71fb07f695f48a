"""The patch for user arrays that TensorFlow overwrites.

TensorFlow copies arrays that a Python function returns to a graph (``numpy_function``,
``from_generator``, and therefore a PyDataset or a generator in ``fit``), except those that begin at
a multiple of 64 bytes: it uses these directly, as its own. An operation may then write its result
into such an array. Under a strategy this happens, because a batch is split into the replicas' parts
and nobody else holds them. If the array is a view of the user's data, the data differ in the next
epoch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from tensorflow.python.ops import script_ops

from gridflow._feed.memory import aligned_empty, is_own
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

#: TensorFlow doesn't copy arrays that begin at a multiple of this (EIGEN_MAX_ALIGN_BYTES).
ALIGNMENT: Final = 64


def _arrays_are_taken() -> bool:
    array = np.zeros(2 * ALIGNMENT, np.uint8)
    array = array[-array.ctypes.data % ALIGNMENT :][:ALIGNMENT]

    def function() -> np.ndarray:
        return array

    registry = script_ops.FuncRegistry()
    return bool(np.shares_memory(registry(registry.insert(function), None, ()), array))


def _copy() -> None:
    def copied(call: Any, self: Any, token: Any, device: Any, args: Any) -> Any:
        found = call(self, token, device, args)
        return [_free(each) for each in found] if isinstance(found, list) else _free(found)

    wrap(script_ops.FuncRegistry, "__call__", copied, Layer.BUG)


def _free(value: Any) -> Any:
    """Return a value that TensorFlow may overwrite."""
    if (
        not isinstance(value, np.ndarray)  # tensors are copied when they are created
        or value.dtype.hasobject
        or value.ctypes.data % ALIGNMENT
        or is_own(value)
    ):
        return value
    copy = aligned_empty(value.shape, value.dtype)
    copy[...] = value
    return copy


def fix(flavour: str) -> Patch:
    """Return the patch, for the flavour of Keras that is imported first."""
    return Patch(
        "arrays that are written into",
        flavour,
        "under a strategy, arrays that a PyDataset, generator or function passes to tf.data are "
        "overwritten if they begin at a multiple of 64 bytes: rows differ from the second epoch "
        "on",
        _arrays_are_taken,
        _copy,
    )
