"""Whether a file's bytes lie in memory already: then they are mapped instead of copied."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["is_cached"]

#: One byte is asked for in so many: a page that isn't there after all is read when it is needed.
_APART_BYTES: Final = 1 << 20
#: The part of them that may lack: some pages leave at any time.
_LACKING: Final = 0.1


def is_cached(path: str, first: int, last: int) -> bool:
    """Return whether the kernel has a range of a local file in memory, as far as can be told.

    Asked for with ``RWF_NOWAIT``, see preadv2(2). A network's file system, or one of a program of
    its own, doesn't know that, so its files are never said to be there. They aren't to be mapped:
    what can't be read ends a process by SIGBUS then, and is an error where it is read.

    Parameters
    ----------
    path : str
    first, last : int
        The range, in bytes; the last one isn't part of it.
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
    except OSError:  # not known there
        return False
    finally:
        os.close(file)
    return True
