"""All-reduce between hosts, along a chain of their first ranks.

Sums travel along the chain, where each host adds its ranks' numbers in order, and come back from
its end. So numbers are always added in rank order, wherever the ranks run, and no network interface
sends or receives anything twice. Pieces are pipelined: while the first comes back, the last is on
its way.

A few numbers cost only latency. So those of each rank travel in both directions at once, and each
host adds all of them.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._collectives.errors import PeerGone, RanksDiffer

if TYPE_CHECKING:
    from gridflow._wire.psk_tls import Connection

_HEADER: Final = struct.Struct("<QQ8s")
#: Bytes in one message.
_PIECE: Final = 128 << 10
#: Up to this many bytes of each rank travel in both directions.
_SMALL: Final = 2048


class Chain:
    """The place of this host in the chain.

    Parameters
    ----------
    before, after : Connection or None
        To the neighbouring hosts.
    """

    def __init__(self, before: Connection | None, after: Connection | None) -> None:
        self._before, self._after = before, after
        self._count = 0

    def all_reduce(self, parts: list[np.ndarray[Any, Any]], total: np.ndarray[Any, Any]) -> None:
        """Sum the numbers of the ranks of all hosts.

        Parameters
        ----------
        parts : list of numpy.ndarray
            The numbers of this host's ranks, as one-dimensional arrays.
        total : numpy.ndarray
            Receives the sum.
        """
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
        try:
            if self._before is not None and self._after is None:
                self._before.send_bytes(header + mine)
            if self._before is not None:
                lower = self._checked(self._before.recv_bytes(), header)
            if self._after is not None:
                self._after.send_bytes(header + lower + mine)
                higher = self._checked(self._after.recv_bytes(), header)
            if self._before is not None and self._after is not None:
                self._before.send_bytes(header + mine + higher)
        except (OSError, EOFError) as error:
            self.close()
            raise _gone() from error
        ranks = np.frombuffer(lower + mine + higher, total.dtype).reshape(-1, len(total))
        total[...] = ranks[0]
        for each in ranks[1:]:
            np.add(total, each, out=total)

    def _pass_through(self, parts: list[np.ndarray[Any, Any]], total: np.ndarray[Any, Any]) -> None:
        """Send sums along the chain and back."""
        most = max(1, _PIECE // total.itemsize)
        pieces = [slice(start, start + most) for start in range(0, max(1, len(total)), most)]
        failures: list[Exception] = []
        back = threading.Thread(
            target=self._bring_back, args=(pieces, total, failures), name="gridflow-sums-back"
        )
        if self._after is not None:
            back.start()
        try:
            self._send_on(pieces, parts, total)
        except (OSError, EOFError) as error:
            failures.insert(0, error)
            self.close()  # the other thread is waiting for data that won't come
        if self._after is not None:
            back.join()
        if failures:
            raise _gone() from failures[0]

    def close(self) -> None:
        """Close the connections."""
        for each in (self._before, self._after):
            if each is not None:
                each.hang_up()

    def _agree(self, total: np.ndarray[Any, Any]) -> None:
        """Compare the operation with those of the neighbouring hosts."""
        mine = self._header(total)
        try:
            if self._after is not None:
                self._after.send_bytes(mine)
            if self._before is not None:
                self._checked(self._before.recv_bytes(), mine)
        except (OSError, EOFError) as error:
            raise _gone() from error

    def _header(self, total: np.ndarray[Any, Any]) -> bytes:
        return _HEADER.pack(self._count, total.nbytes, total.dtype.name.encode()[:8])

    def _checked(self, message: bytes, header: bytes) -> bytes:
        """Return what follows the header, which must be this host's."""
        if not message.startswith(header):
            self.close()
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
                self._after.send_bytes(_bytes(target))
            elif self._before is not None:
                self._before.send_bytes(_bytes(target))

    def _bring_back(
        self, pieces: list[slice], total: np.ndarray[Any, Any], failures: list[Exception]
    ) -> None:
        assert self._after is not None
        try:
            for piece in pieces:
                view = _bytes(total[piece])
                self._after.receive_into(view)
                if self._before is not None:
                    self._before.send_bytes(view)
        except (OSError, EOFError) as error:
            failures.append(error)
            self.close()


def _bytes(values: np.ndarray[Any, Any]) -> memoryview:
    return memoryview(values.view(np.uint8))  # type: ignore[arg-type]


def _gone() -> PeerGone:
    return PeerGone("connection closed by peer: a host has left the sum over all ranks.")
