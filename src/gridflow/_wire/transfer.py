"""Files as streams of byte chunks, the form in which they travel between agent and coordinator.

A stream that breaks off looks like one that ends: gRPC closes it in order when its sender fails. So
the last message carries the file's size and checksum, and a file without it is refused.
"""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, Final, Self

import msgspec
import pyarrow as pa

from gridflow._files.local import open_file
from gridflow._spec.place import Count
from gridflow._wire.messages import parse, read
from gridflow.errors import GridflowError, WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from _typeshed import ReadableBuffer

CHUNK_SCHEMA: Final = pa.schema([("chunk", pa.binary())])
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class _End:
    """The last message: size and checksum of the file."""

    size: Count
    crc32: Count


def chunks(file: IO[bytes], offset: int = 0) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
    """Read an open file from an offset as batches of one chunk each, and an end message.

    Bytes appended meanwhile aren't read. The file is closed at the end.

    Yields: The buffer is empty before the end.
    Raises `OSError`: The file can't be read, or has shrunk.
    """
    nothing, crc = pa.py_buffer(b""), 0
    with file:
        size = os.fstat(file.fileno()).st_size - offset
        file.seek(offset)
        left = size
        while left > 0:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise OSError(f"{file.name} shrank by {left:,} bytes while it was being sent")
            left -= len(chunk)
            crc = zlib.crc32(chunk, crc)
            yield pa.record_batch([pa.array([chunk], pa.binary())], schema=CHUNK_SCHEMA), nothing
    end = msgspec.json.encode(asdict(_End(max(size, 0), crc)))
    yield pa.record_batch([pa.array([], pa.binary())], schema=CHUNK_SCHEMA), pa.py_buffer(end)


@dataclass(frozen=True)
class Spared:
    """A file that is in memory because of a disk.

    `error`: How the disk refused it.
    """

    content: bytes
    error: OSError


class IncomingFile:
    """Writes an arriving file to its path; closed, it is on the disk or in memory.

    `spares`: Whether to keep the file in memory if the disk refuses it. Otherwise that is an error.
    Raises `OSError`: The disk refused it.
    """

    def __init__(self, path: Path, *, spares: bool) -> None:
        self._path, self._spares = path, spares
        self._file: io.FileIO | None = None
        self._written = 0
        self._memory = io.BytesIO()
        self._error: OSError | None = None
        try:
            # Unbuffered: what a full disk has refused isn't written again at the end.
            self._file = open_file(path, "w+b", buffering=0)  # type: ignore[assignment]
        except OSError as error:
            self._spare(error)

    def write(self, data: ReadableBuffer) -> int:
        """Write some bytes, all of them."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self._file is not None:
            try:
                while rest:
                    done = self._file.write(rest)
                    self._written += done
                    rest = rest[done:]
            except OSError as error:
                self._spare(error)
        self._memory.write(rest)
        return size

    def finish(self) -> Spared | None:
        """Make the complete file durable; return it if it is in memory."""
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self._spare(error)
        return None if self._error is None else Spared(self._memory.getvalue(), self._error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _spare(self, error: OSError) -> None:
        """Go on in memory, with what is on the disk; leave its room to others."""
        if not self._spares or isinstance(error, GridflowError):
            raise error
        self._error, file, self._file = error, self._file, None
        if file is not None:
            with file:
                file.seek(0)
                self._memory.write(file.read(self._written))
            with contextlib.suppress(OSError):
                self._path.unlink()


def receive(stream: Iterable[Any], file: IO[bytes] | IncomingFile, sender: str) -> int:
    """Write an arriving file; return its size in bytes once it is complete.

    `file`: binary file.
    `sender`: Who sends it, for error messages.
    Raises `WireError`: The stream broke off, or doesn't consist of chunks.
    """
    size, crc = 0, 0
    end: _End | None = None
    for message in stream:
        batch, told = message.data, message.app_metadata
        if end is not None or batch is None or not batch.schema.equals(CHUNK_SCHEMA):
            raise WireError(f"{sender} sent something other than the chunks of one file.")
        for chunk in batch.column(0).drop_null():
            data = chunk.as_buffer()
            file.write(data)
            crc = zlib.crc32(data, crc)
            size += len(data)
        if told is not None and told.size:
            end = parse(sender, "the end of a file", read(sender, told.to_pybytes()), _End)
    if end is None:
        raise WireError(f"incomplete file: {sender} stopped sending after {size:,} bytes.")
    if end != _End(size, crc):
        raise WireError(
            f"damaged file: {sender} sent {size:,} bytes (expected {end.size:,}) with checksum "
            f"{crc:08x} (expected {end.crc32:08x})."
        )
    return size
