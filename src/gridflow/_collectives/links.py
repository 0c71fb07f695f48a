"""Connections between the processes of one host.

Both sides prove that they know the group's key: other jobs of the same user can reach the socket.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._collectives.errors import PeerGone
from gridflow._wire.acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

#: A rank, and the proof that it knows the key.
_HELLO: Final = struct.Struct("!I32s")
_ANSWER_BYTES: Final = 32
_SOCKET: Final = "s"
#: Time limit for a peer's first words.
_HELLO_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


class TimeLimit:
    """A time limit for several steps, in seconds.

    `given_up`: Whether it is over before.
    """

    def __init__(self, seconds: float, given_up: Callable[[], bool] = lambda: False) -> None:
        self.seconds, self._given_up = seconds, given_up
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the limit; a little even afterwards, for what is there already."""
        return max(self._end - time.monotonic(), _LOOK_SECONDS)

    @property
    def has_run_out(self) -> bool:
        return time.monotonic() > self._end or self._given_up()

    def wait(self, event: threading.Event) -> bool:
        """Wait for an event; return whether it came in time."""
        while not event.wait(min(self.left, _LOOK_SECONDS)):
            if self.has_run_out:
                return event.is_set()
        return True


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

    def accept(
        self, ranks: Sequence[int], key: bytes, limit: TimeLimit
    ) -> dict[int, socket.socket]:
        """Return the connections of peers that know the key.

        Raises `PeerGone`: A rank doesn't connect in time.
        """
        found: dict[int, socket.socket] = {}
        all_came = threading.Event()

        def meet(link: socket.socket) -> Generator[int, None, None]:
            with contextlib.ExitStack() as stack:
                stack.callback(link.close)
                said = b""
                while len(said) < _HELLO.size:
                    yield select.POLLIN
                    more = link.recv(_HELLO.size - len(said))
                    if not more:
                        return
                    said += more
                rank, proof = _HELLO.unpack(said)
                if rank not in ranks or rank in found:
                    return
                if not hmac.compare_digest(proof, _proof(key, "from", rank, self.folder)):
                    return
                link.settimeout(None)
                link.sendall(_proof(key, "to", rank, self.folder))
                stack.pop_all()
                found[rank] = link
                if len(found) == len(ranks):
                    all_came.set()

        if not ranks:
            return found
        acceptor = Acceptor(self._socket, meet, "gridflow-links", _HELLO_SECONDS)
        limit.wait(all_came)
        acceptor.close()
        if len(found) < len(ranks):
            for link in found.values():
                link.close()
            missing = ", ".join(str(rank) for rank in ranks if rank not in found)
            raise PeerGone(f"rank {missing} did not connect within {limit.seconds:g} seconds.")
        return found

    def close(self) -> None:
        """Accept no more connections."""
        self._socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def connect(folder: str, rank: int, key: bytes, limit: TimeLimit) -> socket.socket:
    """Connect to the listener in a folder, as a rank.

    Raises `PeerGone`: Nothing listens there, or nothing that knows the key.
    """
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(limit.left)
        with _Place(folder) as place:
            link.connect(place)
        link.sendall(_HELLO.pack(rank, _proof(key, "from", rank, folder)))
        answer = b""
        while len(answer) < _ANSWER_BYTES:
            link.settimeout(limit.left)
            more = link.recv(_ANSWER_BYTES - len(answer))
            if not more:
                raise ConnectionResetError("it ended, or it doesn't know this rank.")
            answer += more
        if not hmac.compare_digest(answer, _proof(key, "to", rank, folder)):
            raise ConnectionRefusedError("it has another key.")
    except OSError as error:
        link.close()
        raise PeerGone(f"connection closed by peer in {folder}: {error}") from error
    link.settimeout(None)
    return link


def _proof(key: bytes, direction: str, rank: int, folder: str) -> bytes:
    return hmac.digest(key, f"{direction} {rank} in {folder}".encode(), "sha256")


class _Place:
    """A short path to a socket in a folder with a long one: the kernel allows 107 bytes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __enter__(self) -> str:
        self._descriptor = os.open(self._folder, os.O_PATH | os.O_DIRECTORY)
        return str(Path("/proc/self/fd", str(self._descriptor), _SOCKET))

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
