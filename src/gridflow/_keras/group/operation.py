"""The exchange of gradients as an operation of TensorFlow, where it was built in C.

What it leaves to Python, such as an exchange with other hosts, goes through
`gridflow._collectives.host` as without it: a traced step mustn't depend on who is in the group.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from gridflow._collectives import errors, native

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._collectives.host import HostGroup

_FLOAT32 = np.dtype(np.float32)


@functools.cache
def _loaded() -> tuple[Any, ctypes.CDLL] | None:
    """Return the module that TensorFlow makes of the library, and the library; or None."""
    path = native.path_of("exchange_tensorflow")
    if path is None:
        return None
    try:
        module = tf.load_op_library(str(path))
    except tf.errors.OpError:  # not for this TensorFlow
        return None
    library = native.load(path)
    if library is None:
        return None
    for how, words in errors.formats().items():
        library.gridflow_say(how, ctypes.c_char_p(words))
    return module, library


def mean_of_rows() -> Callable[..., Any] | None:
    """Return the operation, or None."""
    loaded = _loaded()
    return None if loaded is None else loaded[0].gridflow_mean_of_rows


class InUse:
    """The group through which the operation exchanges values."""

    def __init__(self, group: HostGroup | None) -> None:
        self._group = group
        loaded = _loaded()
        if loaded is None:
            return
        if group is not None:
            self._in_python = native.InPython(self._add_up)  # C refers to it
            group.state.in_python = self._in_python
        loaded[1].gridflow_use(None if group is None else ctypes.byref(group.state))

    def _add_up(self, given: Any) -> int:
        """Exchange what C leaves to Python; return how that ends."""
        assert self._group is not None
        arrays = given.contents
        try:
            sums, weights = self._group.add_up(
                [_array(arrays, arrays.given, place) for place in range(arrays.count)],
                dtype=_FLOAT32,
                weight=arrays.weight,
                checksum=arrays.checksum,
            )
        except Exception as error:  # noqa: BLE001 (C can't raise it: the operation fails with it)
            words = f"{type(error).__name__}: {error}"
            self._group.state.failure = words.encode()[: native.FAILURE_BYTES - 1]
            return native.IN_PYTHON
        for place, found in enumerate(sums):
            _array(arrays, arrays.sums, place)[...] = found
        for rank, weight in enumerate(weights):
            arrays.weights[rank] = weight
        return native.DONE


def _array(arrays: Any, where: Any, place: int) -> np.ndarray[Any, Any]:
    length = arrays.lengths[place]
    if not length:
        return np.empty(0, np.float32)
    address = ctypes.cast(where[place], ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(address, (length,))
