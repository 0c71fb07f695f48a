"""How malloc treats what is freed, in a process that is fed long texts."""

from __future__ import annotations

import ctypes
import functools
from typing import Final

__all__ = ["keep_freed"]

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
