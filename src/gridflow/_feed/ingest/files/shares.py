"""Divides files among ranks, evenly by bytes, with the same result on every rank. Pure."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Piece", "share_out"]

#: A piece is split if a rank's share would otherwise be larger or smaller by this fraction.
_TOLERANCE: Final = 0.05


@dataclass(frozen=True)
class Piece:
    """A unit that is read at once, by one rank or several.

    `file`: The file's index in the list of all files.
    `place`: Position in the file: the number of a row group, or the byte offset of the first
        record.
    `size`: Bytes.
    `rows`: Rows of the piece that are read.
    `first`: Rows of the piece before them.
    `is_divisible`: Whether several ranks may read a part each.
    """

    file: int
    place: int
    size: int
    rows: int
    first: int = 0
    is_divisible: bool = True


def share_out(pieces: Sequence[Piece], ranks: int) -> list[list[Piece]]:
    """Return the pieces of each rank.

    If all of them can be divided, each rank gets consecutive rows with the same number of bytes;
    pieces stay whole if that changes a rank's share by no more than a twentieth. Otherwise whole
    pieces are assigned, the largest first, each to the rank that has the least so far.

    `pieces`: In the order of the files.
    """
    if ranks == 1:
        return [list(pieces)]
    if all(piece.is_divisible for piece in pieces):
        shares = _consecutive(pieces, [piece.size for piece in pieces], ranks)
        if all(shares):
            return shares
        # A few long rows among many short ones: better fewer bytes than none.
        return _consecutive(pieces, [piece.rows for piece in pieces], ranks)
    return _dealt(pieces, ranks)


def _dealt(pieces: Sequence[Piece], ranks: int) -> list[list[Piece]]:
    numbers: list[list[int]] = [[] for _ in range(ranks)]
    least = [(0, 0, rank) for rank in range(ranks)]
    for number in sorted(range(len(pieces)), key=lambda i: -pieces[i].size):
        size, count, rank = heapq.heappop(least)
        numbers[rank].append(number)
        heapq.heappush(least, (size + pieces[number].size, count + 1, rank))
    return [[pieces[number] for number in sorted(each)] for each in numbers]


def _consecutive(pieces: Sequence[Piece], sizes: Sequence[int], ranks: int) -> list[list[Piece]]:
    shares: list[list[Piece]] = [[] for _ in range(ranks)]
    share = sum(sizes) / ranks
    rank, begin = 0, 0.0
    for piece, size in zip(pieces, sizes, strict=True):
        end, at = begin + size, 0
        while rank < ranks - 1 and end > (rank + 1) * share:
            border = (rank + 1) * share
            rows = round(piece.rows * (border - begin) / size)
            if border - begin <= _TOLERANCE * share:
                rows = 0
            elif end - border <= _TOLERANCE * share and rank == _rank_at(end, share, ranks) - 1:
                rows = piece.rows
            if rows > at:
                shares[rank].append(replace(piece, first=piece.first + at, rows=rows - at))
                at = rows
            rank += 1
        if at < piece.rows:
            shares[rank].append(replace(piece, first=piece.first + at, rows=piece.rows - at))
        begin = end
    return shares


def _rank_at(byte: float, share: float, ranks: int) -> int:
    return min(ranks - 1, int(byte // share))
