"""Records of TFRecord files, as bytes."""

from __future__ import annotations

import gzip
import struct
import zlib
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, cast

import google_crc32c

from gridflow._files.local import replacing
from gridflow.errors import DataError, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

#: The compressions that TensorFlow knows.
COMPRESSIONS: Final = ("none", "gzip", "deflate")
_ALIASES: Final = {"": "none", "uncompressed": "none", "gz": "gzip", "zlib": "deflate"}
_SUFFIXES: Final = {".gz": "gzip", ".gzip": "gzip", ".deflate": "deflate", ".zlib": "deflate"}
_HEADER: Final = struct.Struct("<QI")
_FOOTER: Final = struct.Struct("<I")
_CHUNK: Final = 1 << 20
_MASK_DELTA: Final = 0xA282EAD8
_ONES: Final = 0xFFFFFFFF


class CorruptRecord(DataError):
    """A frame of a TFRecord file is damaged.

    Attributes
    ----------
    path : str
        The file.
    offset : int
        Where the record's frame begins, in bytes of the uncompressed file.
    index : int
        The record's number, from 0 on.
    """

    def __init__(self, message: str, path: str = "", offset: int = 0, index: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.index = index

    def __reduce__(self) -> tuple[Callable[..., CorruptRecord], tuple[object, ...]]:
        return type(self), (str(self), self.path, self.offset, self.index)


def compression_of(path: str | os.PathLike[str], compression: str | None = None) -> str:
    """Return the compression that is named, else the one that the file's suffix tells.

    Raises
    ------
    InvalidArgument
        If there is none of that name.
    """
    if compression is None:
        return _SUFFIXES.get(Path(path).suffix.lower(), "none")
    name = _ALIASES.get(compression.lower(), compression.lower())
    if name not in COMPRESSIONS:
        msg = f"compression must be one of {', '.join(COMPRESSIONS)}, got {compression!r}."
        raise InvalidArgument(msg + did_you_mean(name, COMPRESSIONS))
    return name


class _Inflated:
    """Zlib streams behind one another, as a file to read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflate = zlib.decompressobj()
        self._inside = False

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
            if self._inflate.eof:
                self._inflate = zlib.decompressobj()
                self._inside = False
            if not data:
                data = self._file.read(_CHUNK)
            if not data:
                if self._inside:
                    raise EOFError("the file ends inside a zlib stream")
                break
            self._inside = True
            parts.append(self._inflate.decompress(data, missing))
            missing -= len(parts[-1])
        return b"".join(parts)


@contextmanager
def _opened(path: str | os.PathLike[str], compression: str) -> Iterator[IO[bytes]]:
    with Path(path).open("rb") as file:
        if compression == "gzip":
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield cast("IO[bytes]", unzipped)
        elif compression == "deflate":
            yield cast("IO[bytes]", _Inflated(file))
        else:
            yield file


def read_frames(
    path: str | os.PathLike[str], *, compression: str | None = None, check_crc: bool = True
) -> Iterator[tuple[int, bytes]]:
    """Give each record of a file with the offset of its frame; parameters as `read_records`."""
    name = str(path)
    offset = index = 0

    def corrupt(what: str) -> CorruptRecord:
        where = f"{name}, record {index} at byte {offset}"
        return CorruptRecord(f"{what} ({where}).", name, offset, index)

    with _opened(path, compression_of(path, compression)) as file:
        while True:
            try:
                header = file.read(_HEADER.size)
                if not header:
                    return
                if len(header) < _HEADER.size:
                    raise corrupt("the file ends inside a record's header")
                length, length_crc = _HEADER.unpack(header)
                if check_crc and masked_crc32c(header[:8]) != length_crc:
                    raise corrupt("the checksum of a record's length differs" + _hint(header))
                data = _read_exactly(file, length)
                footer = file.read(_FOOTER.size)
                if len(data) < length or len(footer) < _FOOTER.size:
                    raise corrupt(f"the file ends inside a record of {length} bytes")
            except (EOFError, OSError, zlib.error) as error:
                raise corrupt(f"can't decompress: {error}") from error
            if check_crc and masked_crc32c(data) != _FOOTER.unpack(footer)[0]:
                raise corrupt(f"the checksum of a record of {length} bytes differs")
            yield offset, data
            offset += _HEADER.size + length + _FOOTER.size
            index += 1


def read_records(
    path: str | os.PathLike[str], *, compression: str | None = None, check_crc: bool = True
) -> Iterator[bytes]:
    """Give the records of a file, one after the other.

    Parameters
    ----------
    path
        A local file.
    compression
        ``"none"``, ``"gzip"`` or ``"deflate"``; by default what the file's suffix tells.
    check_crc
        Whether to check the checksums.

    Raises
    ------
    CorruptRecord
        At the first frame that is damaged; a file that ends inside one is, too.
    """
    for _, record in read_frames(path, compression=compression, check_crc=check_crc):
        yield record


def _read_exactly(file: IO[bytes], length: int) -> bytes:
    # In parts: a wrong length must not make room for terabytes.
    if length <= _CHUNK:
        return file.read(length)
    parts = []
    while length > 0 and (part := file.read(min(length, _CHUNK))):
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _hint(header: bytes) -> str:
    if header[:2] == b"\x1f\x8b":
        return "; the file looks like gzip, read it with compression 'gzip'"
    if header[0] == 0x78 and int.from_bytes(header[:2]) % 31 == 0:  # noqa: PLR2004 -- RFC 1950
        return "; the file looks like zlib, read it with compression 'deflate'"
    return "; is it a TFRecord file?"


def write_records(
    path: str | os.PathLike[str], records: Iterable[bytes], *, compression: str | None = None
) -> int:
    """Write records into a file, and return their number.

    An existing file is replaced once the new one is complete; after an error it is unchanged.

    Parameters
    ----------
    path
        A local file.
    records
        The bytes of each record.
    compression
        ``"none"``, ``"gzip"`` or ``"deflate"``; by default what the file's suffix tells.

    Raises
    ------
    InvalidArgument
        If a record isn't bytes.
    """
    name = compression_of(path, compression)
    count = 0
    with ExitStack() as opened:
        file = opened.enter_context(opened.enter_context(replacing(path)).open("wb"))
        out: IO[bytes] = file
        deflate = zlib.compressobj()
        if name == "gzip":
            packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
            out = cast("IO[bytes]", opened.enter_context(packed))
        for given in records:
            record = _as_bytes(given)
            length = struct.pack("<Q", len(record))
            frame = b"".join(
                (
                    length,
                    _FOOTER.pack(masked_crc32c(length)),
                    record,
                    _FOOTER.pack(masked_crc32c(record)),
                )
            )
            out.write(deflate.compress(frame) if name == "deflate" else frame)
            count += 1
        if name == "deflate":
            out.write(deflate.flush())
    return count


def _as_bytes(record: object) -> bytes:
    if isinstance(record, bytes):
        return record
    if isinstance(record, bytearray | memoryview):
        return bytes(record)  # the length of a memoryview counts its items
    raise InvalidArgument(
        f"a record must be bytes, got {type(record).__name__}; encode text, and pass a list of "
        "records."
    )


def masked_crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC32C of some bytes as a frame carries it: rotated, plus a constant."""
    crc: int = google_crc32c.value(bytes(data))
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & _ONES
