"""The patch for arrays of the user's that TensorFlow writes into.

What a Python function gives to a graph (``numpy_function``, ``from_generator``, and so a PyDataset
or a generator in ``fit``) TensorFlow copies, unless it begins at a multiple of 64 bytes: that it
takes as it is, for its own. An operation may then write its result into it, as strategies bring
about: a batch is cut into the parts of the replicas, and nobody else holds them. Where the array is
a view of the user's data, these are other ones in the next epoch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from tensorflow.python.ops import script_ops

from gridflow._feed.memory import aligned_empty, is_own
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

#: Arrays that begin at a multiple of it aren't copied by TensorFlow (EIGEN_MAX_ALIGN_BYTES).
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
    """Return a value that TensorFlow may write into."""
    if (
        not isinstance(value, np.ndarray)  # a tensor: these are copied when they are made
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
        "arrays that a PyDataset, generator or function gives to tf.data are overwritten under a "
        "strategy where they begin at a multiple of 64 bytes: rows are others from the second "
        "epoch on",
        _arrays_are_taken,
        _copy,
    )
