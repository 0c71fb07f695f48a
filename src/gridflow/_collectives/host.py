"""All-reduce between the ranks of one host, through shared memory and sockets.

All ranks add numbers in rank order, so all get the same bits.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._collectives import native
from gridflow._collectives.errors import DIFFER, Missing, RanksDiffer
from gridflow._collectives.parts import Parts, Whole
from gridflow._feed.memory import aligned_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Self

    from gridflow._collectives.chain import Chain

#: Number of the operation, total bytes, type of the numbers, offset of the piece.
_HEADER: Final = struct.Struct("<QQ8sQ")
#: Up to this many bytes are sent in the message itself.
_SMALL: Final = 2048
#: Bytes that a rank shares at a time; they stay in the processor's cache.
_PIECE: Final = 1 << 20
#: Instead of the offset: all ranks are about to share more memory.
_ROOM: Final = 2**64 - 1
#: Instead of the offset: a rank is missing, whose number stands instead of the operation's.
_LOSS: Final = 2**64 - 2
#: After the first piece has been added up: pieces of one host's ranks, or the sum over all hosts.
_FIRST_SUM: Final = 1
#: Up to this many ranks, each rank adds everything; more ranks share the work in a second round.
_FEW: Final = 4


def _known(name: str) -> Any:
    """Return an attribute that the exchange in C knows, too."""
    return property(
        lambda group: getattr(group.state, name),
        lambda group, value: setattr(group.state, name, value),
    )


class HostGroup:
    """The ranks of one host, one of them here.

    Ranks are numbered from 0 without gaps.

    `ranks`: The ranks of this host, ascending.
    `size`: Number of ranks on all hosts.
    `links`: A connected socket by rank.
    `chain`: Connects to other hosts, on the first rank of this host.
    `timeout`: Seconds to wait for a peer. Default: no limit.
    `names`: What errors call the ranks. Default: as they are numbered.
    `told`: What this rank tells the others with each `add_up`: a byte of flags.
    `asked`: More flags, which another thread may set.
    `waited`: Seconds that this rank has waited in sums for others, and for the network between
        hosts.
    `heard`: What any rank has told. After the same sum, it is the same on all ranks.
    """

    told, asked, heard, waited = map(_known, ("told", "asked", "heard", "waited"))

    def __init__(
        self,
        ranks: list[int],
        rank: int,
        size: int,
        links: Mapping[int, socket.socket],
        *,
        chain: Chain | None = None,
        hosts: int = 1,
        timeout: float | None = None,
        names: Sequence[int] = (),
    ) -> None:
        self._ranks, self.rank, self.size = ranks, rank, size
        self.names = names or range(size)
        self._me = ranks.index(rank)
        self._links = [(each, links[each]) for each in ranks if each != rank]
        self._chain, self._hosts = chain, hosts
        sockets = [-1 if each == rank else links[each].fileno() for each in ranks]
        #: What the exchange in C knows, too.
        self.state = native.GroupState.of(ranks, rank, self.names, sockets, hosts)
        self._native = native.loaded()
        self._lock = (
            threading.Lock() if self._native is None else native.GroupLock(self.state, self._native)
        )
        self._memory = np.empty(0, np.uint8)
        for _, link in self._links:
            if timeout is not None:
                whole = int(timeout)  # 0 seconds and 0 microseconds would be no limit
                pair = struct.pack("ll", whole, max(int((timeout - whole) * 1e6), int(not whole)))
                link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pair)

    @classmethod
    def lost(cls, rank: int, size: int) -> Self:
        """Return a group whose other ranks are gone: all of its exchanges fail."""
        links = {}
        for peer in set(range(size)) - {rank}:
            links[peer], theirs = socket.socketpair()
            theirs.close()
        return cls(list(range(size)), rank, size, links)

    def all_reduce(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the sum over all ranks.

        `values`: Numbers, of the same shape and type on all ranks.
        Raises `PeerGone`: A rank has ended, or is cut off.
        Raises `TimeoutError`: A rank didn't come in time.
        Raises `RanksDiffer`: A rank called another operation.
        """
        mine = np.asarray(values, order="C")
        return self._sum(Whole(mine.reshape(-1))).reshape(mine.shape)

    def add_up(
        self,
        arrays: Sequence[np.ndarray[Any, Any]],
        *,
        dtype: np.dtype[Any],
        weight: int | None = None,
        checksum: int | None = None,
    ) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
        """Return sums over all ranks, or weighted means, in one exchange.

        `arrays`: Numbers, of the same shapes on all ranks.
        `dtype`: The floating-point type in which they are exchanged, and come back.
        `weight`: How much this rank's numbers count: its rows. Default: sums are returned.
        `checksum`: Of what must be the same on all ranks. Default: of the shapes.
        `weights`: By rank.
        Raises `PeerGone`, `TimeoutError`, `RanksDiffer`: As `all_reduce`.
        """
        mine = Parts(
            arrays,
            dtype,
            self.rank,
            self.size,
            weight=weight,
            told=self.told | self.asked,
            checksum=checksum,
        )
        if mine.is_plain and (found := self._add_up_in_c(mine)) is not None:
            return found
        total = self._sum(mine)
        notes = mine.notes(total)
        for rank, note in enumerate(notes):
            if note.checksum != mine.checksum:
                raise _in_other_shapes(self.names[rank], mine)
        for note in notes:
            self.heard |= note.flags
        return mine.sums(total), [note.weight for note in notes]

    def _add_up_in_c(self, mine: Parts) -> tuple[list[np.ndarray[Any, Any]], list[int]] | None:
        if self._native is None:
            return None
        state = ctypes.byref(self.state)
        arrays = native.NativeArrays(mine.arrays, mine.weight, mine.checksum, self.size)
        if not self._native.gridflow_can_add_up(state, arrays.given):
            return None
        sums = mine.sums(aligned_empty((mine.length,), mine.dtype))
        with self._lock:
            how = self._native.gridflow_add_up(state, arrays.into(sums))
            if how == native.OTHER_SHAPES:
                raise _in_other_shapes(self.names[self.state.missing], mine)
            try:
                self._judge(how, self._header(mine, 0))
            except Missing as missing:
                self._give_up(missing)
                raise missing.error(self.names) from None
        return sums, arrays.weights

    def _judge(self, how: int, header: bytes) -> None:
        """Raise an error for the end of an exchange in C."""
        rank = self.state.missing
        if how in native.WHYS:
            raise Missing(rank, native.WHYS[how])
        if how != native.DONE:
            self._compare(rank, header, bytes(self.state.said))

    def tell(self) -> None:
        """Exchange nothing but what ranks tell each other. All must call it."""
        self.add_up([], dtype=np.dtype(np.float32))

    def _sum(self, mine: Whole | Parts) -> np.ndarray[Any, Any]:
        out = aligned_empty((mine.length,), mine.dtype)
        with self._lock:
            try:
                if self._hosts == 1 and mine.nbytes <= _SMALL:
                    self._sum_small(mine, out)
                else:
                    self._sum_shared(mine, out)
            except Missing as missing:
                self._give_up(missing)
                raise missing.error(self.names) from missing.__cause__
            self.state.count += 1
        return out

    def all_gather(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the values of all ranks, by rank.

        `values`: Of the same shape and type on all ranks.
        Raises `PeerGone`, `TimeoutError`, `RanksDiffer`: As `all_reduce`.
        """
        mine = np.asarray(values, order="C")
        everyone = np.zeros((self.size, mine.nbytes), np.uint8)
        everyone[self.rank] = mine.reshape(-1).view(np.uint8)
        # The others add zeros.
        return self.all_reduce(everyone).view(mine.dtype).reshape(self.size, *mine.shape)

    def of_rank(self, values: np.ndarray[Any, Any], rank: int) -> np.ndarray[Any, Any]:
        """Return the values of one rank, to the bit.

        `values`: Of the same shape and type on all ranks.
        Raises `PeerGone`, `TimeoutError`, `RanksDiffer`: As `all_reduce`.
        """
        mine = np.asarray(values, order="C")
        raw = mine.reshape(-1).view(np.uint8)
        # The others add zeros.
        total = self.all_reduce(raw if self.rank == rank else np.zeros_like(raw))
        return total.view(mine.dtype).reshape(mine.shape)

    def leave(self) -> None:
        """Tell the others that this rank takes part in no more sums: they would wait for it."""
        with self._lock:
            self._give_up(Missing(self.rank, "left"))

    # Small ones ----------------------------------------------------------------------------------

    def _sum_small(self, mine: Whole | Parts, out: np.ndarray[Any, Any]) -> None:
        numbers = np.empty(mine.length, mine.dtype)
        mine.write(0, numbers)
        header = self._header(mine, 0)
        message = header + numbers.tobytes()
        for _, link in self._links:
            _send(link, message)
        parts = {self.rank: numbers}
        for rank, link in self._links:
            self._await(rank, link, header)
            parts[rank] = np.frombuffer(self._receive(rank, link, mine.nbytes), mine.dtype)
        _add([parts[rank] for rank in self._ranks], out)
        mine.finish(0, out)

    # Large ones ----------------------------------------------------------------------------------

    def _sum_shared(self, mine: Whole | Parts, out: np.ndarray[Any, Any]) -> None:
        # Hosts agree on the whole array at once, so that its pieces can be pipelined.
        whole, itemsize = max(1, mine.length), mine.dtype.itemsize
        most = max(1, _PIECE // itemsize) if self._hosts == 1 else whole
        self._make_room(mine, min(most, mine.length) * itemsize)
        for number, start in enumerate(range(0, whole, most)):
            piece = out[start : start + most]
            self._sum_piece(mine, start, piece, number)
            mine.finish(start, piece)

    def _sum_piece(
        self, mine: Whole | Parts, start: int, out: np.ndarray[Any, Any], number: int
    ) -> None:
        # Pieces alternate between two slots: a rank that is ahead overwrites nothing still being
        # read. Between hosts one is enough, as all ranks meet again before the sum is read.
        self.state.side ^= self._hosts == 1
        slots = [self._slot(place, out) for place in range(len(self._ranks) + 1)]
        *parts, total = slots
        mine.write(start, parts[self._me])
        self._meet(mine, 2 * number)
        if self._hosts > 1:
            if self._chain is not None:
                with self._waiting():
                    self._chain.all_reduce(parts, total)
        elif len(parts) <= _FEW:
            _add(parts, out)
            return
        else:
            share = -(-len(out) // len(parts))
            own = slice(self._me * share, (self._me + 1) * share)
            _add([part[own] for part in parts], total[own])
        self._meet(mine, 2 * number + 1)
        out[...] = total

    def _slot(self, place: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        start = (self.state.side * (len(self._ranks) + 1) + place) * self.state.room
        return self._memory[start : start + like.nbytes].view(like.dtype)

    def _make_room(self, mine: Whole | Parts, need: int) -> None:
        """Share more memory, if a rank's part needs more than there is."""
        if need <= self.state.room:
            return
        self._meet(mine, _ROOM)  # a rank in another operation would take the memory for its end
        room = -(-max(need, _PIECE) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (1 + (self._hosts == 1)) * (len(self._ranks) + 1) * room
        if self._me == 0:
            descriptor = os.memfd_create("gridflow-collectives", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, size)
            for _, link in self._links:
                socket.send_fds(link, [b"m"], [descriptor])
        else:
            rank, link = self._links[0]
            try:
                _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
            except BlockingIOError:
                raise Missing(rank, "late") from None
            except OSError:
                descriptors = []
            if not descriptors:
                raise Missing(rank, "gone")
            (descriptor,) = descriptors
        try:
            self._memory = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        finally:
            os.close(descriptor)
        self.state.room, self.state.memory = room, self._memory.ctypes.data

    # All of a host -------------------------------------------------------------------------------

    def _meet(self, mine: Whole | Parts, stage: int) -> None:
        """Wait until all ranks have called the same operation."""
        header = self._header(mine, stage)
        for _, link in self._links:
            _send(link, header)
        for rank, link in self._links:
            # The first rank may be waiting for other hosts. It says who is missing there, and if it
            # stands still itself, they notice.
            is_away = self._hosts > 1 and rank == self._ranks[0] and stage == _FIRST_SUM
            self._await(rank, link, header, is_patient=is_away)

    def _await(
        self, rank: int, link: socket.socket, header: bytes, *, is_patient: bool = False
    ) -> None:
        """Wait until a rank has called the same operation."""
        with self._waiting():
            told = self._receive(rank, link, _HEADER.size, is_patient=is_patient)
        self._compare(rank, header, told)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    def _header(self, mine: Whole | Parts, stage: int) -> bytes:
        return _HEADER.pack(self.state.count, mine.nbytes, mine.dtype.name.encode()[:8], stage)

    def _compare(self, rank: int, mine: bytes, told: bytes) -> None:
        if told == mine:
            return
        missing, _, why, stage = _HEADER.unpack(told)
        if stage == _LOSS:
            raise Missing(missing, why.rstrip(bytes(1)).decode(), is_told=True)
        raise RanksDiffer(
            f"{DIFFER.format(rank=self.names[rank])} Here: {_describe(mine)}; there: "
            f"{_describe(told)}."
        )

    def _receive(
        self, rank: int, link: socket.socket, count: int, *, is_patient: bool = False
    ) -> bytes:
        while True:
            try:
                told = link.recv(count, socket.MSG_WAITALL)
            except BlockingIOError:
                if is_patient:
                    continue
                raise Missing(rank, "late") from None
            except OSError:
                told = b""
            if len(told) < count:
                raise Missing(rank, "gone")
            return told

    def _give_up(self, missing: Missing) -> None:
        """Tell the others who is missing: they may be waiting for this rank."""
        words = _HEADER.pack(missing.rank, 0, missing.why.encode(), _LOSS)
        for _, link in self._links:
            _send(link, words)
        if self._chain is not None:
            self._chain.give_up(missing)


def _in_other_shapes(rank: int, mine: Parts) -> RanksDiffer:
    return RanksDiffer(f"{DIFFER.format(rank=rank)} Shapes here: {mine.describe()}.")


def _send(link: socket.socket, message: bytes) -> None:
    try:
        link.sendall(message, socket.MSG_NOSIGNAL)
    except OSError:
        return  # its earlier messages can still be read, and then its end


def _add(parts: list[np.ndarray[Any, Any]], out: np.ndarray[Any, Any]) -> None:
    if len(parts) == 1:
        out[...] = parts[0]
        return
    np.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        np.add(out, part, out=out)


def _describe(header: bytes) -> str:
    count, size, dtype, _ = _HEADER.unpack(header)
    return f"operation {count + 1}, {size:,} bytes of {dtype.rstrip(bytes(1)).decode()}"
