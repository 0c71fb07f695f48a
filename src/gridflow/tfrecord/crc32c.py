"""CRC32C in numpy: fast enough to check files without a compiled package.

A checksum of this kind is linear, so bytes can be looked up all at once in one table for each place
in a block, the blocks' results combined two by two.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint32]

_POLYNOMIAL: Final = 0x82F63B78  # reflected
_MASK_DELTA: Final = 0xA282EAD8
_BLOCK: Final = 256
_SHORT: Final = 64
_ONES: Final = 0xFFFFFFFF


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _byte_table()


def _zeros(crc: Words, table: Words) -> Words:
    """Append one zero byte to what each checksum stands for."""
    shifted: Words = crc >> np.uint32(8) ^ table[crc & np.uint32(0xFF)]
    return shifted


@cache
def _places() -> Words:
    """Return the checksum of each byte at each place of a block, in one flat table."""
    table = np.array(_TABLE, np.uint32)
    rows = [table]
    for _ in range(_BLOCK - 1):
        rows.append(_zeros(rows[-1], table))
    return np.concatenate(rows[::-1])


@cache
def _shift(level: int) -> tuple[Words, ...]:
    """Return tables, one a byte, that append ``_BLOCK << level`` zero bytes to a checksum."""
    if level == 0:
        table = np.array(_TABLE, np.uint32)
        tables = []
        for byte in range(4):
            crc = np.arange(256, dtype=np.uint32) << np.uint32(8 * byte)
            for _ in range(_BLOCK):
                crc = _zeros(crc, table)
            tables.append(crc)
        return tuple(tables)
    half = _shift(level - 1)
    return tuple(_apply(half, table) for table in half)


def _apply(tables: tuple[Words, ...], crc: Any) -> Any:
    byte = np.uint32(0xFF)
    return (
        tables[0][crc & byte]
        ^ tables[1][crc >> np.uint32(8) & byte]
        ^ tables[2][crc >> np.uint32(16) & byte]
        ^ tables[3][crc >> np.uint32(24)]
    )


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of some bytes."""
    if len(data) < _SHORT:
        crc = _ONES
        for byte in bytes(data):
            crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
        return crc ^ _ONES
    # Zeros in front change nothing when the register starts at 0; its true start is all ones,
    # which is the same as to invert the first four bytes.
    padded = np.zeros(-(-len(data) // _BLOCK) * _BLOCK, np.uint8)
    padded[len(padded) - len(data) :] = np.frombuffer(data, np.uint8)
    first = len(padded) - len(data)
    padded[first : first + 4] ^= 0xFF
    crcs = _blocks(padded.reshape(-1, _BLOCK))
    level = 0
    while len(crcs) > 1:
        if len(crcs) % 2:
            crcs = np.concatenate([np.zeros(1, np.uint32), crcs])
        crcs = _apply(_shift(level), crcs[::2]) ^ crcs[1::2]
        level += 1
    return int(crcs[0]) ^ _ONES


def _blocks(blocks: NDArray[np.uint8]) -> Words:
    offsets = np.arange(_BLOCK, dtype=np.intp) * 256
    places = _places()
    # A few thousand blocks at a time: the looked-up words are four times as many bytes.
    parts = [
        np.bitwise_xor.reduce(places[blocks[i : i + 4096] + offsets], axis=1)
        for i in range(0, len(blocks), 4096)
    ]
    return np.concatenate(parts)


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum as a TFRecord frame carries it: rotated, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES
