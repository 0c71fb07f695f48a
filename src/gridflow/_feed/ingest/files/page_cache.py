"""Checks whether a file is in the page cache, so that it can be mapped instead of copied."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["is_cached"]

#: One byte is checked in this many: a page that is missing after all is read when needed.
_APART_BYTES: Final = 1 << 20
#: The fraction that may be missing: pages may be evicted at any time.
_LACKING: Final = 0.1


def is_cached(path: str, first: int, last: int) -> bool:
    """Return whether the kernel has a range of a local file in memory, as far as is known.

    Uses ``RWF_NOWAIT``, see preadv2(2). Network file systems and FUSE don't support it, so their
    files never count as cached. They must not be mapped: a read error would end the process with
    SIGBUS instead of raising an error.

    `first`, `last`: The range, in bytes; the last byte is excluded.
    """
    at_once = getattr(os, "RWF_NOWAIT", None)
    if at_once is None:  # not Linux
        return False
    places = [*range(first, last, _APART_BYTES), last - 1]
    byte, most = [bytearray(1)], len(places) * _LACKING
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    lacking = 0
    try:
        for place in places:
            try:
                lacking += not os.preadv(file, byte, place, at_once)
            except BlockingIOError:
                lacking += 1
            if lacking > most:
                return False
    except OSError:  # not supported there
        return False
    finally:
        os.close(file)
    return True
