"""Shared memory between a feeder and a node on the same host, so that only locations are sent.

Every byte sent over a connection is encrypted, copied into the kernel and out of it, and decrypted.
Content in shared memory is written once and read in place. The memory is an anonymous file, which
exists for as long as a process holds it, so nothing is left behind when processes die. The feeder
announces it over the authenticated connection. The node opens it in ``/proc``, if it runs on the
feeder's host, as the same user, and sees its processes. Otherwise the rows are sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = "gridflow-feed"
#: The link's target in ``/proc``; opening any other file of a process could have side effects.
_SHOWN: Final = f"/memfd:{_NAME} (deleted)"
#: Size of the token at the start, which proves that a node has opened the right memory.
_TOKEN_BYTES: Final = 32
_HEAD_BYTES: Final = mmap.PAGESIZE


class Lent:
    """The feeder's side: slots of equal size.

    `count`: Number of slots.
    `slot_bytes`: A multiple of the page size. A slot takes up memory only once it is written to.
    `free`: Indices of the free slots.
    """

    def __init__(self, count: int, slot_bytes: int) -> None:
        size = _HEAD_BYTES + count * slot_bytes
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            # Forbid shrinking: a reader of the missing part would be killed by SIGBUS.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            self._memory = mmap.mmap(file, size)
        except BaseException:
            os.close(file)
            raise
        self._file, self._slot_bytes = file, slot_bytes
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._memory[:_TOKEN_BYTES] = self._token
        self.free = list(range(count))

    @classmethod
    def where_it_can(cls, count: int, slot_bytes: int) -> Lent | None:
        """Return slots, or None if the system doesn't support or allow such memory."""
        try:
            return cls(count, slot_bytes)
        except (OSError, AttributeError):
            return None

    @property
    def offer(self) -> dict[str, Any]:
        """What the node needs to open the memory."""
        size, token = len(self._memory), self._token
        return {"process": os.getpid(), "file": self._file, "size": size, "token": token}

    def take(self, size: int) -> tuple[int, slice] | None:
        """Reserve a slot for `size` bytes; return it and its location, or None without room."""
        if not self.free or size > self._slot_bytes:
            return None
        slot = self.free.pop()
        begin = _HEAD_BYTES + slot * self._slot_bytes
        return slot, slice(begin, begin + size)

    def view(self, place: slice) -> memoryview:
        """Return a location's memory for writing."""
        return memoryview(self._memory)[place]

    def close(self) -> None:
        """Release the memory; the node keeps it until it has read everything."""
        os.close(self._file)
        with contextlib.suppress(BufferError):  # a traceback may still hold a view
            self._memory.close()


def borrowed(offer: Mapping[str, Any]) -> memoryview | None:
    """Return a feeder's memory for reading, or None if it can't be opened here."""
    path = f"/proc/{offer['process']:d}/fd/{offer['file']:d}"
    try:
        if str(Path(path).readlink()) != _SHOWN:
            return None
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(file, offer["size"], prot=mmap.PROT_READ)
        finally:
            os.close(file)
    except (OSError, ValueError):  # another host or user, or another size
        return None
    if not secrets.compare_digest(memory[:_TOKEN_BYTES], offer["token"]):
        memory.close()
        return None
    return memoryview(memory)
