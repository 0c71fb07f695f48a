"""How ranks find each other."""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._collectives import links
from gridflow._collectives.chain import Chain
from gridflow._collectives.errors import PeerGone
from gridflow._collectives.host import HostGroup
from gridflow._wire import psk_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from typing import Self

    from gridflow._wire.psk_tls import Connection

_KEY_BYTES: Final = 32
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True)
class Announcement:
    """Where a rank can be found.

    Attributes
    ----------
    host : str
        The same for processes that can share memory.
    folder : str
        The folder of its socket, for processes on the same host.
    address : str
        Where it listens for other hosts.
    port : int
    key : str
        The chief's key, which authenticates members of the group.
    """

    host: str
    folder: str
    address: str
    port: int
    key: str


class Joining:
    """One rank's way into the group.

    Parameters
    ----------
    rank : int
    address : str
        Of this host, as seen by others.
    bind : str
        The address to listen on.
    """

    def __init__(self, rank: int, address: str, bind: str) -> None:
        self._rank = rank
        self._local = links.Listener()
        try:
            self._remote = psk_tls.listen(bind.strip("[]"))
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
        self, everyone: Sequence[Announcement], seconds: float, timeout: float | None
    ) -> HostGroup:
        """Return the group, once all are connected.

        Parameters
        ----------
        everyone : sequence of Announcement
            By rank.
        seconds : float
            Time limit for connecting.
        timeout : float or None
            Time limit for each operation, in seconds.

        Raises
        ------
        PeerGone
            A rank doesn't connect.
        """
        hosts: dict[str, list[int]] = {}
        for rank, each in enumerate(everyone):
            hosts.setdefault(each.host, []).append(rank)
        ranks = hosts[self.mine.host]
        lower, higher = [r for r in ranks if r < self._rank], [r for r in ranks if r > self._rank]
        found = {r: links.connect(everyone[r].folder, self._rank, seconds) for r in lower}
        found |= self._local.accept(higher, seconds)
        chain = None
        if len(hosts) > 1 and self._rank == ranks[0]:
            leaders = [members[0] for members in hosts.values()]
            chain = self._chain(leaders, everyone, seconds)
        return HostGroup(
            ranks, self._rank, len(everyone), found, chain=chain, hosts=len(hosts), timeout=timeout
        )

    def _chain(self, leaders: list[int], everyone: Sequence[Announcement], seconds: float) -> Chain:
        key = bytes.fromhex(everyone[0].key)
        place = leaders.index(self._rank)
        visitor = _Visitor(self._remote, key) if place else None
        before = after = None
        if place + 1 < len(leaders):
            there = everyone[leaders[place + 1]]
            after = _knock((there.address.strip("[]"), there.port), key, seconds)
        if visitor is not None:
            before = visitor.wait(seconds)
        return Chain(before, after)


class _Visitor:
    """The connection from the previous host."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._came = threading.Event()
        self._connection: Connection | None = None
        self._door = psk_tls.Door(listener, key, self._take)

    def _take(self, connection: Connection) -> None:
        self._connection = connection
        self._came.set()
        threading.Event().wait()  # a door closes the connection of a thread that returns

    def wait(self, seconds: float) -> Connection:
        came = self._came.wait(seconds)
        self._door.stop_listening()
        if not came or self._connection is None:
            raise PeerGone(f"the previous host did not connect within {seconds:g} seconds.")
        return self._connection


def _knock(address: tuple[str, int], key: bytes, seconds: float) -> Connection:
    give_up = time.monotonic() + seconds
    while True:
        try:
            return psk_tls.knock(address, key, max(give_up - time.monotonic(), _LOOK_SECONDS))
        except OSError as error:
            if time.monotonic() > give_up:
                raise PeerGone(f"connection closed by peer {address[0]}: {error}") from error
            time.sleep(_LOOK_SECONDS)


def _host() -> str:
    """Return a value shared by processes that can share memory and reach a socket's folder."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        spaces = [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "pid", "mnt")]
    except OSError:  # hidden by a sandbox: this rank counts as a separate host
        return secrets.token_hex(_KEY_BYTES)
    return "-".join([boot, *map(str, spaces), str(os.getuid())])
