"""Files as streams of byte chunks: the form in which they travel between agent and coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHUNK_SCHEMA: Final = pa.schema([("chunk", pa.binary())])
_CHUNK_BYTES: Final = 1 << 20


def chunks(path: Path, offset: int = 0) -> Iterator[pa.RecordBatch]:
    """Read a file from an offset on as batches of one chunk each."""
    with path.open("rb") as file:
        file.seek(offset)
        while chunk := file.read(_CHUNK_BYTES):
            yield pa.record_batch([pa.array([chunk], pa.binary())], schema=CHUNK_SCHEMA)
