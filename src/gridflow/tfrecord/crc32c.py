"""The checksum of a TFRecord frame."""

from __future__ import annotations

from typing import Final

import google_crc32c

_MASK_DELTA: Final = 0xA282EAD8
_ONES: Final = 0xFFFFFFFF


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of some bytes as a frame carries it: rotated, plus a constant."""
    crc: int = google_crc32c.value(bytes(data))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES
