"""Unmaps libraries' code that the server no longer needs.

Loading TensorFlow touches hundreds of MiB of its libraries' files. While the server maps those
pages, they count as its memory and the kernel can't reuse them; a forked training process doesn't
inherit such mappings anyway. Unmapped, they stay in the page cache, where the next process finds
them without reading the disk.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

_MADV_DONTNEED: Final = 4  # <bits/mman.h> of Linux
_MAPS: Final = Path("/proc/self/smaps")


def let_go_of_code() -> int:
    """Unmap pages of files that this process never wrote; return how many bytes those were.

    Only mappings that can't be written and have no page of their own (relocations do) are taken:
    what is read there again comes from the file.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    freed = 0
    for start, end, resident in _unwritten():
        if advise(start, end - start, _MADV_DONTNEED) == 0:
            freed += resident
    return freed


def _unwritten() -> list[tuple[int, int, int]]:
    """Return start, end and resident bytes of the mappings of files that were only read."""
    found: list[tuple[int, int, int]] = []
    place: tuple[int, int] | None = None
    resident = 0
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # nothing hangs on it
        return []
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name:
            words = rest.split(maxsplit=4)
            is_file = words[-1].startswith("/")
            start, end = (int(each, 16) for each in name.split("-"))
            place = (start, end) if is_file and words[0][1:] in ("-xp", "--p") else None
        elif name == "Rss:":
            resident = int(rest.split()[0]) * 1024
        elif name == "Anonymous:" and place is not None and resident and rest.split()[0] == "0":
            found.append((*place, resident))
    return found
