"""Memory of large arrays, whose page faults would cost more than what is done with it."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["aligned_empty", "is_own", "keep_freed"]

#: Of glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
#: From this size on, blocks come from malloc, if it keeps them.
_LARGE: Final = 1 << 20
#: glibc's maximum: larger blocks come from the system and are returned to it at once.
_LARGEST: Final = 32 << 20
#: One is filled while TensorFlow still reads the other.
_MOST_BLOCKS: Final = 2
#: References to a kept block that nobody uses: the list's, a variable's and an argument's.
_UNUSED: Final = 3
_blocks: list[pa.Buffer] = []
_lock = threading.Lock()
#: Unused bytes allowed at the end of a heap.
_KEPT: Final = 64 << 20


def keep_freed() -> bool:
    """Make malloc keep freed blocks of up to 32 MiB, 64 MiB in total, for reuse.

    Python's bytes, TensorFlow's strings and its tensors are malloc blocks. glibc returns blocks
    from 128 KiB on, and the end of a heap, to the system at once, and a page fault for each 4 KiB
    of fresh memory costs more than copying them: a step of a model with a million parameters takes
    twice as long. By itself, glibc would adapt the threshold; TensorFlow sets it for good when it
    makes the first dataset of a Python generator (``ApplyPython311MemoryPatch``). So this isn't
    done once, but wherever it matters; it takes two microseconds.

    Returns: Whether it was set: other C libraries don't have these settings.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _KEPT))


@functools.cache
def _mallopt() -> Any:
    try:
        return ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Return an uninitialised array that begins at a multiple of 64 bytes.

    What was freed is kept for reuse: the page faults of fresh memory would cost more than the copy
    itself. Arrow's pool, whose threads don't wait for one another, does so only for small blocks
    when they are freed by another thread, as TensorFlow's are. Of blocks that malloc returns to the
    system, the last two are kept here.
    """
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or not size:
        return np.empty(shape, dtype)
    if size >= _LARGEST:
        return _reused(size).view(dtype).reshape(shape)
    is_kept = size >= _LARGE and keep_freed()
    buffer = pa.allocate_buffer(size, memory_pool=pa.system_memory_pool() if is_kept else None)
    return np.frombuffer(buffer, np.uint8).view(dtype).reshape(shape)


def _reused(size: int) -> np.ndarray:
    """Return a large block: a kept one to which nobody else refers, or a new one."""
    with _lock:
        for kept in _blocks:
            if kept.size == size and sys.getrefcount(kept) == _UNUSED:
                return np.frombuffer(kept, np.uint8)
        _blocks.append(pa.allocate_buffer(size))
        del _blocks[:-_MOST_BLOCKS]
        return np.frombuffer(_blocks[-1], np.uint8)


def is_own(array: np.ndarray) -> bool:
    """Return whether an array lies in memory of `aligned_empty`: nobody else writes into it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, pa.Buffer) and base.is_mutable
