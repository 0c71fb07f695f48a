"""Connections between the processes of one host."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._collectives.errors import PeerGone

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANK: Final = struct.Struct("!I")
_PEER: Final = struct.Struct("3i")
_SOCKET: Final = "s"
_LOOK_SECONDS: Final = 0.01


class Listener:
    """A socket for the other processes of this host, in a private folder.

    Only this user can reach it.
    """

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="gridflow-links-")  # mode 0700
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with _Place(self.folder) as place:
                self._socket.bind(place)
            self._socket.listen(128)
        except BaseException:
            self.close()
            raise

    def accept(self, ranks: Sequence[int], seconds: float) -> dict[int, socket.socket]:
        """Return the connections of peers, each of which sends its rank first."""
        found: dict[int, socket.socket] = {}
        give_up = time.monotonic() + seconds
        while len(found) < len(ranks):
            self._socket.settimeout(max(give_up - time.monotonic(), _LOOK_SECONDS))
            try:
                link, _ = self._socket.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in ranks if rank not in found)
                raise PeerGone(
                    f"rank {missing} did not connect within {seconds:g} seconds."
                ) from None
            _, user, _ = _PEER.unpack(
                link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            )
            rank = _RANK.unpack(link.recv(_RANK.size, socket.MSG_WAITALL))[0]
            if user != os.getuid() or rank not in ranks or rank in found:
                link.close()
                continue
            found[rank] = link
        return found

    def close(self) -> None:
        """Accept no more connections."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def connect(folder: str, rank: int, seconds: float) -> socket.socket:
    """Connect to the listener in a folder, as a rank."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(seconds)
        with _Place(folder) as place:
            link.connect(place)
        link.sendall(_RANK.pack(rank))
    except OSError as error:
        link.close()
        raise PeerGone(f"connection closed by peer in {folder}: {error}") from error
    link.settimeout(None)
    return link


class _Place:
    """A short path to a socket in a folder with a long one: the kernel allows 107 bytes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        return str(Path("/proc/self/fd", str(self._descriptor), _SOCKET))

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
