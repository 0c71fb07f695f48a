"""All-reduce between hosts, along a chain of their first ranks.

Sums travel along the chain, where each host adds its ranks' numbers in order, and come back from
its end. So numbers are always added in rank order, wherever the ranks run, and no network interface
sends or receives anything twice. Pieces are pipelined: while the first comes back, the last is on
its way.

A few numbers cost only latency. So those of each rank travel in both directions at once, and each
host adds all of them.

A host that waits in vain tells the next ones for whom, so that these don't blame it: each waits a
little longer for a neighbour than that may wait for the hosts behind it.
"""

from __future__ import annotations

import errno
import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._collectives.errors import Missing, RanksDiffer
from gridflow._wire.mutual_tls import Farewell, Late

if TYPE_CHECKING:
    from gridflow._wire.mutual_tls import Connection

_CUT: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
_LOSS: Final = struct.Struct("<Q4s")
_FAREWELL_SECONDS: Final = 1.0
_HEADER: Final = struct.Struct("<QQ8s")
#: Bytes in one message.
_PIECE: Final = 128 << 10
#: Up to this many bytes of each rank travel in both directions.
_SMALL: Final = 2048


class Neighbour:
    """The connection to a neighbouring host, whose errors name the rank that is missing.

    `hosts`: The ranks of the neighbour, and of the hosts behind it.
    `timeout`: Seconds that a rank may be late.
    """

    def __init__(
        self, connection: Connection, hosts: list[list[int]], timeout: float | None
    ) -> None:
        self._connection, self._rank = connection, hosts[0][0]
        # Before a host waits for the next one, its ranks have waited for one another.
        waits = [1 if len(ranks) == 1 else 2 for ranks in hosts]
        self._soon = None if timeout is None else timeout * waits[0]
        self._late = None if timeout is None else timeout * sum(waits)
        self.hosts = len(hosts)
        connection.patience = self._late

    def send(self, message: bytes | memoryview) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise self._missing(error) from error

    def receive(self, *, soon: bool = False) -> bytes:
        """Wait for a message; `soon`: that says no more than that the neighbour is there."""
        self._connection.patience = self._soon if soon else self._late
        try:
            return self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise self._missing(error) from error
        finally:
            self._connection.patience = self._late

    def receive_into(self, target: memoryview) -> None:
        """Wait for a message of this length."""
        try:
            self._connection.receive_into(target)
        except (OSError, EOFError) as error:
            raise self._missing(error) from error

    def give_up(self, missing: Missing) -> None:
        """Tell the neighbour who is missing, and hang up."""
        words = _LOSS.pack(missing.rank, missing.why.encode())
        self._connection.say_farewell(words, _FAREWELL_SECONDS)
        self._connection.hang_up()

    def hang_up(self) -> None:
        """Close the connection."""
        self._connection.hang_up()

    def _missing(self, error: OSError | EOFError) -> Missing:
        if isinstance(error, Farewell):
            rank, why = _LOSS.unpack(error.content)
            return Missing(rank, why.rstrip(bytes(1)).decode(), is_told=True)
        if isinstance(error, Late):
            return Missing(self._rank, "late")
        is_cut = isinstance(error, OSError) and error.errno in _CUT
        return Missing(self._rank, "cut" if is_cut else "gone")


class Chain:
    """The place of this host in the chain.

    `before`, `after`: To the neighbouring hosts.
    `timeout`: Seconds that a rank may be late.
    """

    def __init__(
        self, before: Neighbour | None, after: Neighbour | None, timeout: float | None = None
    ) -> None:
        self._before, self._after = before, after
        self._neighbours = [each for each in (before, after) if each is not None]
        # Between two hosts, nobody's silence can be another's.
        self._meets_first = timeout is not None and sum(each.hosts for each in self._neighbours) > 1
        self._gives_up = threading.Lock()  # once: then it stays locked
        self._count = 0

    def all_reduce(self, parts: list[np.ndarray[Any, Any]], total: np.ndarray[Any, Any]) -> None:
        """Sum the numbers of the ranks of all hosts.

        `parts`: The numbers of this host's ranks, as one-dimensional arrays.
        `total`: Receives the sum.
        Raises `Missing`: A rank has ended, is late or is cut off.
        Raises `RanksDiffer`: A host is in another operation.
        """
        if self._meets_first:
            self._await_neighbours(total)
        if 0 < total.nbytes <= _SMALL:
            self._gather(parts, total)
        else:
            self._agree(total)
            self._pass_through(parts, total)
        self._count += 1

    def _gather(self, parts: list[np.ndarray[Any, Any]], total: np.ndarray[Any, Any]) -> None:
        """Exchange the numbers of all ranks, and add them."""
        header = self._header(total)
        mine = b"".join(part.tobytes() for part in parts)
        lower = higher = b""
        if self._before is not None and self._after is None:
            self._before.send(header + mine)
        if self._before is not None:
            lower = self._checked(self._before.receive(), header)
        if self._after is not None:
            self._after.send(header + lower + mine)
            higher = self._checked(self._after.receive(), header)
        if self._before is not None and self._after is not None:
            self._before.send(header + mine + higher)
        ranks = np.frombuffer(lower + mine + higher, total.dtype).reshape(-1, len(total))
        total[...] = ranks[0]
        for each in ranks[1:]:
            np.add(total, each, out=total)

    def _pass_through(self, parts: list[np.ndarray[Any, Any]], total: np.ndarray[Any, Any]) -> None:
        """Send sums along the chain and back."""
        most = max(1, _PIECE // total.itemsize)
        pieces = [slice(start, start + most) for start in range(0, max(1, len(total)), most)]
        failures: list[Missing] = []
        back = threading.Thread(
            target=self._bring_back, args=(pieces, total, failures), name="gridflow-sums-back"
        )
        if self._after is not None:
            back.start()
        try:
            self._send_on(pieces, parts, total)
        except Missing as missing:
            failures.append(missing)
            self.give_up(missing)  # the other thread is waiting for data that won't come
        if self._after is not None:
            back.join()
        if failures:
            raise min(failures, key=lambda each: not each.is_told)

    def give_up(self, missing: Missing) -> None:
        """Tell the neighbours who is missing, and close the connections."""
        if self._gives_up.acquire(blocking=False):
            for each in self._neighbours:
                each.give_up(missing)

    def _await_neighbours(self, total: np.ndarray[Any, Any]) -> None:
        """Wait until the neighbours are in this operation.

        Later, their silence may be due to others. So only here can a host that doesn't come be told
        after the time limit for one, however long the chain.
        """
        mine = self._header(total)
        for each in self._neighbours:
            each.send(mine)
        for each in self._neighbours:
            self._checked(each.receive(soon=True), mine)

    def _agree(self, total: np.ndarray[Any, Any]) -> None:
        """Compare the operation with those of the neighbouring hosts."""
        mine = self._header(total)
        if self._after is not None:
            self._after.send(mine)
        if self._before is not None:
            self._checked(self._before.receive(), mine)

    def _header(self, total: np.ndarray[Any, Any]) -> bytes:
        return _HEADER.pack(self._count, total.nbytes, total.dtype.name.encode()[:8])

    def _checked(self, message: bytes, header: bytes) -> bytes:
        """Return what follows the header, which must be this host's."""
        if not message.startswith(header):
            for each in self._neighbours:
                each.hang_up()
            raise RanksDiffer("hosts are in different collective operations.")
        return message[len(header) :]

    def _send_on(
        self,
        pieces: list[slice],
        parts: list[np.ndarray[Any, Any]],
        total: np.ndarray[Any, Any],
    ) -> None:
        so_far = np.empty(max(1, _PIECE // total.itemsize), total.dtype)
        for piece in pieces:
            target = total[piece] if self._after is None else so_far[: len(total[piece])]
            if self._before is None:
                target[...] = parts[0][piece]
                rest = parts[1:]
            else:
                self._before.receive_into(_bytes(target))
                rest = parts
            for part in rest:
                np.add(target, part[piece], out=target)
            if self._after is not None:
                self._after.send(_bytes(target))
            elif self._before is not None:
                self._before.send(_bytes(target))

    def _bring_back(
        self, pieces: list[slice], total: np.ndarray[Any, Any], failures: list[Missing]
    ) -> None:
        assert self._after is not None
        try:
            for piece in pieces:
                view = _bytes(total[piece])
                self._after.receive_into(view)
                if self._before is not None:
                    self._before.send(view)
        except Missing as missing:
            failures.append(missing)
            self.give_up(missing)


def _bytes(values: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(values.view(np.uint8))  # type: ignore[arg-type]
