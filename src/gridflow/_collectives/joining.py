"""How ranks find each other."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._collectives.chain import Chain, Neighbour
from gridflow._collectives.errors import PeerGone
from gridflow._collectives.host import HostGroup
from gridflow._wire import mutual_tls
from gridflow._wire.acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Self

    from gridflow._wire.mutual_tls import Connection

_KEY_BYTES: Final = 32
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Announcement:
    """Where a rank can be found.

    `host`: The same for processes that can share memory.
    `folder`: The folder of its socket, for processes on the same host.
    `address`: Where it listens for other hosts.
    `key`: The chief's key, which authenticates members of the group.
    """

    host: str
    folder: str
    address: str
    port: int
    key: str


class Joining:
    """One rank's way into the group, among whose members it has a place: ranks here are those.

    `address`: Of this host, as seen by others.
    `bind`: The address to listen on.
    """

    def __init__(self, address: str, bind: str) -> None:
        self._local = Listener()
        try:
            self._remote = mutual_tls.listen(bind.strip("[]"))
        except BaseException:
            self._local.close()
            raise
        port = self._remote.getsockname()[1]
        key = secrets.token_hex(_KEY_BYTES)
        self.mine = Announcement(_host(), self._local.folder, address, port, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._local.close()
        self._remote.close()

    def join(
        self,
        rank: int,
        everyone: Sequence[Announcement],
        seconds: float,
        timeout: float | None,
        given_up: Callable[[], bool] = lambda: False,
        names: Sequence[int] = (),
    ) -> HostGroup:
        """Return the group, once all are connected.

        `rank`: Of this process, from 0 without gaps.
        `everyone`: By rank.
        `seconds`: Time limit for connecting.
        `timeout`: Time limit for each operation, in seconds.
        `given_up`: Whether to wait no longer: a rank was lost that has yet to connect.
        `names`: What errors call the ranks. Default: as they are numbered here.
        Raises `PeerGone`: A rank doesn't connect.
        """
        hosts: dict[str, list[int]] = {}
        for place, each in enumerate(everyone):
            hosts.setdefault(each.host, []).append(place)
        ranks = hosts[self.mine.host]
        limit = TimeLimit(seconds, given_up)
        key = bytes.fromhex(everyone[0].key)
        with contextlib.ExitStack() as stack:
            found: dict[int, socket.socket] = {}
            for lower in [each for each in ranks if each < rank]:
                found[lower] = connect(everyone[lower].folder, rank, key, limit)
                stack.callback(found[lower].close)
            higher = self._local.accept([each for each in ranks if each > rank], key, limit)
            for link in higher.values():
                stack.callback(link.close)
            chain = None
            if len(hosts) > 1 and rank == ranks[0]:
                chain = self._chain(rank, list(hosts.values()), everyone, key, limit, timeout)
            stack.pop_all()
        return HostGroup(
            ranks,
            rank,
            len(everyone),
            found | higher,
            names=names or range(len(everyone)),
            chain=chain,
            hosts=len(hosts),
            timeout=timeout,
        )

    def _chain(
        self,
        mine: int,
        hosts: list[list[int]],
        everyone: Sequence[Announcement],
        key: bytes,
        limit: TimeLimit,
        timeout: float | None,
    ) -> Chain:
        place = next(at for at, ranks in enumerate(hosts) if ranks[0] == mine)
        lower, higher = hosts[:place][::-1], hosts[place + 1 :]
        before = after = None
        visitor = _Visitor(self._remote, key) if lower else None
        try:
            if higher:
                rank = higher[0][0]
                after = Neighbour(_knock(rank, everyone[rank], key, limit), higher, timeout)
            if visitor is not None:
                before = Neighbour(visitor.wait(lower[0][0], limit), lower, timeout)
        finally:
            if visitor is not None:
                visitor.stop_listening()
        return Chain(before, after, timeout)


class _Visitor:
    """The connection from the previous host."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._came = threading.Event()
        self._connection: Connection | None = None
        self._door = mutual_tls.Door(listener, key, self._take)

    def _take(self, connection: Connection) -> None:
        self._connection = connection
        self._came.set()
        threading.Event().wait()  # a door closes the connection of a thread that returns

    def wait(self, rank: int, limit: TimeLimit) -> Connection:
        if not limit.wait(self._came) or self._connection is None:
            raise PeerGone(
                f"rank {rank}, on another host, did not connect within {limit.seconds:g} seconds."
            )
        return self._connection

    def stop_listening(self) -> None:
        self._door.stop_listening()


def _knock(rank: int, there: Announcement, key: bytes, limit: TimeLimit) -> Connection:
    address = (there.address.strip("[]"), there.port)
    while True:
        try:
            return mutual_tls.knock(address, key, limit.left)
        except OSError as error:
            if limit.has_run_out:
                raise PeerGone(
                    f"connection closed by peer: rank {rank} at {address[0]}: {error}"
                ) from error
            time.sleep(_LOOK_SECONDS)


def _host() -> str:
    """Return a value shared by processes that can share memory and reach a socket's folder."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "pid", "mnt")]
    except OSError:  # hidden by a sandbox: this rank counts as a separate host
        return secrets.token_hex(_KEY_BYTES)
    return "-".join([boot, *map(str, spaces), str(os.getuid())])


# Connections between the processes of one host.
#
# Both sides prove that they know the group's key: other jobs of the same user can reach the
# socket.

#: A rank, and the proof that it knows the key.
_HELLO: Final = struct.Struct("!I32s")
_ANSWER_BYTES: Final = 32
_SOCKET: Final = "s"
#: Time limit for a peer's first words.
_HELLO_SECONDS: Final = 10.0


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
