"""Memory that a feeder shares with a node of its host: rows lie there, and only places are sent.

A connection costs by the byte: what is sent is encrypted, copied into the kernel and out of it, and
decrypted. What lies here is written once, and made rows of where it lies. The memory is a file
without a name, which the system keeps for as long as a process has it: whoever dies, nothing is
left behind. Those who know the cluster's key tell each other of it over their connection; the node
finds it in ``/proc``, if it runs on the feeder's host, sees its processes and belongs to the same
user. In any other case rows are sent.
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
#: As the system shows it; who opens another file of an unrelated process may change something.
_SHOWN: Final = f"/memfd:{_NAME} (deleted)"
#: What is written first, by which a node knows that it is the feeder's memory which it has opened.
_TOKEN_BYTES: Final = 32
_HEAD_BYTES: Final = mmap.PAGESIZE


class Lent:
    """The feeder's side: slots of one size.

    Parameters
    ----------
    count : int
    slot_bytes : int
        A multiple of a page's size. A slot takes memory once it is written to.

    Attributes
    ----------
    free : list of int
        The numbers of those that may be written to.
    """

    def __init__(self, count: int, slot_bytes: int) -> None:
        size = _HEAD_BYTES + count * slot_bytes
        file = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(file, size)
            # Nobody who reads it is killed because it has become shorter.
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
        """Return slots; None on a system that has no such memory, or forbids it."""
        try:
            return cls(count, slot_bytes)
        except (OSError, AttributeError):
            return None

    @property
    def offer(self) -> dict[str, Any]:
        """What the node needs to know."""
        size, token = len(self._memory), self._token
        return {"process": os.getpid(), "file": self._file, "size": size, "token": token}

    def take(self, size: int) -> tuple[int, slice] | None:
        """Return a slot that is free no more, and the place of some bytes there; None: no room."""
        if not self.free or size > self._slot_bytes:
            return None
        slot = self.free.pop()
        begin = _HEAD_BYTES + slot * self._slot_bytes
        return slot, slice(begin, begin + size)

    def view(self, place: slice) -> memoryview:
        """Return memory to write to."""
        return memoryview(self._memory)[place]

    def close(self) -> None:
        """Give it back; the node keeps what it has not read yet."""
        os.close(self._file)
        with contextlib.suppress(BufferError):  # an error's traceback holds a view of it
            self._memory.close()


def borrowed(offer: Mapping[str, Any]) -> memoryview | None:
    """Return a feeder's memory, to read; None if it isn't to be had here."""
    path = f"/proc/{offer['process']:d}/fd/{offer['file']:d}"
    try:
        if str(Path(path).readlink()) != _SHOWN:
            return None
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(file, offer["size"], prot=mmap.PROT_READ)
        finally:
            os.close(file)
    except (OSError, ValueError):  # another host's or user's; another size
        return None
    if not secrets.compare_digest(memory[:_TOKEN_BYTES], offer["token"]):
        memory.close()
        return None
    return memoryview(memory)
