"""Memory of large arrays, whose page faults would cost more than what is done with it."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["aligned_empty", "is_own", "keep_freed"]

#: Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: The most that glibc takes: larger blocks come from the system, and go back to it at once.
_LARGEST: Final = 32 << 20
#: How much may lie unused at the end of a heap.
_KEPT: Final = 64 << 20


@functools.cache
def keep_freed() -> bool:
    """Have malloc keep blocks of up to 32 MiB that were freed, up to 64 MiB, for the next ones.

    Python's bytes and TensorFlow's strings are blocks of malloc's. glibc gives those from 128 KiB
    on, and the end of a heap, back to the system at once (TensorFlow sees to it that it never
    learns better), and a page fault for each 4 KiB of fresh memory costs more than to copy them.

    Returns
    -------
    bool
        Whether it could be told: other libraries of C have no such settings, and it stays as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _KEPT))


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an uninitialised array that begins at a multiple of 64 bytes.

    The memory is Arrow's, whose pool keeps what was freed: TensorFlow tells malloc to give memory
    back at once, and the page faults of fresh memory would cost more than the copy itself.
    """
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not size:
        return np.empty(shape, dtype)
    return np.frombuffer(pa.allocate_buffer(size), np.uint8).view(dtype).reshape(shape)


def is_own(array: np.ndarray) -> bool:
    """Return whether an array lies in memory of `aligned_empty`, which is used once."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, pa.Buffer) and base.is_mutable
