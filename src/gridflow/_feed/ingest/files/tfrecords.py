"""TFRecord files of Examples: a piece is a range of records, or a whole compressed file.

Such files have no index, so they are scanned once. TensorFlow's own operations read, check and
parse records; Arrow first copies remote files to the local disk, one piece at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gridflow._feed.ingest.files.formats import Description, Format, Stretch
from gridflow._feed.normalize import FeedOptions, normalise
from gridflow._files.systems import is_local
from gridflow.errors import (
    DataError,
    InvalidArgument,
    MissingDependency,
    SchemaError,
    did_you_mean,
)
from gridflow.tfrecord.example import MalformedExample, parse_example
from gridflow.tfrecord.framing import CorruptRecord, compression_of, read_frames, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np

    from gridflow._feed.ingest.files.shares import Piece
    from gridflow._files.listing import FoundFile

__all__ = ["RecordFiles"]

_PIECE_BYTES: Final = 8 << 20
_SAMPLE_RECORDS: Final = 100
_BUFFER_BYTES: Final = 1 << 20
_FAR_BYTES: Final = 16 << 10
_HEADER: Final = struct.Struct("<QI")
#: Overhead of a record: its length, and the checksums of the length and of the bytes.
_FRAME_BYTES: Final = 16
#: TensorFlow's names for the compressions of `gridflow.tfrecord`.
_NAMES: Final = {"none": "", "gzip": "GZIP", "deflate": "ZLIB"}


class RecordFiles(Format):
    """Features of Examples in TFRecord files.

    `columns`: The features that are read.
    `spec`: As for ``tf.io.parse_example``; default: inferred from the first 100 records.
    `compression` ({'none', 'gzip', 'deflate'}): Default: by each file's suffix.
    `folder`: For copies of remote files.
    """

    def __init__(
        self,
        files: Sequence[FoundFile],
        dataset: str,
        columns: Sequence[str],
        *,
        spec: Mapping[str, Any] | None,
        compression: str | None,
        folder: Path,
    ) -> None:
        super().__init__(files, dataset)
        self._tf = _tensorflow()
        self._columns, self._folder = list(columns), folder
        self._compression = [compression_of(file.path, compression) for file in files]
        self._spec: dict[str, Any] = {}
        if spec is not None:
            self._spec = {name: self._checked(name, spec) for name in columns}

    def describe(self, number: int) -> Description:
        """Find the records of a file."""
        found = self.files[number]
        if self._compression[number] != "none":
            with self._copied(found, 0, found.size) as path:
                frames = read_frames(path, compression=self._compression[number], check_crc=False)
                rows = sum(1 for _ in frames)
            return Description((Stretch(0, max(1, found.size), rows, rows),), is_divisible=False)
        try:
            with found.at.system.open_input_file(found.at.path) as file:
                return Description(tuple(_stretches(file, found)))
        except OSError as error:
            raise DataError(f"{found.path} can't be read: {error}") from error

    def load(self, piece: Piece, *, views: bool = False) -> pa.RecordBatch:
        """Read and parse the records of a piece."""
        del views  # there are none
        tf, found = self._tf, self.files[piece.file]
        compression = self._compression[piece.file]
        with contextlib.ExitStack() as stack:
            stack.enter_context(tf.device("CPU:0"))
            if compression == "none" and is_local(found.path):
                path, place = Path(found.path), piece.place
            else:
                path = stack.enter_context(self._copied(found, piece.place, piece.size))
                place = 0
            # tf.data.TFRecordDataset starts at a file's beginning. This one supports offsets, but
            # not with an iterator in 2.21, whose kernel loses the offsets when graphs are
            # rewritten.
            records = tf.data.experimental.from_variant(
                tf.raw_ops.TFRecordDatasetV2(
                    filenames=[str(path)],
                    compression_type=_NAMES[compression],
                    buffer_size=_BUFFER_BYTES,
                    byte_offsets=[place],
                ),
                tf.TensorSpec((), tf.string),
            )
            wanted = records.skip(piece.first).take(piece.rows).batch(max(1, piece.rows))
            try:
                return self._parsed(wanted.get_single_element())
            except tf.errors.OpError as error:
                raise DataError(self._refused(error)) from error

    def _parsed(self, records: Any) -> pa.RecordBatch:
        parsed = self._tf.io.parse_example(records, self._spec)
        arrays = [_arrow(parsed[name].numpy()) for name in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, names=self._columns)
        return normalise(batch, self.dataset, FeedOptions())[0]

    def _refused(self, error: Exception) -> str:
        text = str(getattr(error, "message", "") or error).strip().splitlines()[0]
        taken = [f"{name}: {f.dtype.name}{list(f.shape)}" for name, f in self._spec.items()]
        return (
            f"records of dataset {self.dataset!r} can't be parsed: {text} The features were taken "
            f"to be {', '.join(taken)}. Describe them with spec=, as for "
            "tf.io.parse_example: a FixedLenFeature with its shape, and a default_value if some "
            "records lack it."
        )

    def _sample(self, descriptions: Sequence[Description]) -> pa.RecordBatch:
        number, stretch = self.first_stretch(descriptions)
        found = self.files[number]
        with self._copied(found, stretch.place, stretch.size) as path:
            records = read_records(path, compression=self._compression[number])
            sample = list(itertools.islice(records, _SAMPLE_RECORDS))
        if not self._spec:
            self._spec = self._inferred(sample, found.path)
        try:
            return self._parsed(self._tf.constant(sample))
        except self._tf.errors.OpError as error:
            raise DataError(f"{self._refused(error)} (In {found.path}.)") from error

    def _inferred(self, sample: Sequence[bytes], path: str) -> dict[str, Any]:
        tf = self._tf
        try:
            examples = [parse_example(record).features for record in sample]
        except MalformedExample as error:
            raise MalformedExample(f"{path} holds a record that is no Example: {error}") from error
        known = sorted({name for example in examples for name in example})
        spec = {}
        for name in self._columns:
            if name not in known:
                raise SchemaError(
                    f"dataset {self.dataset!r}: the first records of {path} have no feature "
                    f"{name!r}. They have: {', '.join(known)}.{did_you_mean(name, known)}"
                )
            values = [example.get(name) for example in examples]
            lengths = sorted({len(each) if each is not None else 0 for each in values})
            if len(lengths) > 1:
                raise DataError(
                    f"feature {name!r} of dataset {self.dataset!r} has {lengths[0]} values in some "
                    f"records of {path} and {lengths[-1]} in others. If it may be missing, pass "
                    "spec= with a default_value; arrays need the same length in all records."
                )
            first = next(each for each in values if each is not None)
            kind = tf.string if isinstance(first, list) else tf.as_dtype(first.dtype)
            spec[name] = tf.io.FixedLenFeature(() if lengths == [1] else (lengths[0],), kind)
        return spec

    def _checked(self, name: str, spec: Mapping[str, Any]) -> Any:
        if not isinstance(spec, Mapping):
            raise InvalidArgument(
                f"spec= maps features to what tf.io.parse_example takes; got {spec!r}."
            )
        if name not in spec:
            raise SchemaError(
                f"spec= has no entry for {name!r}; it has: {', '.join(spec)}."
                f"{did_you_mean(name, spec)}"
            )
        if not isinstance(spec[name], self._tf.io.FixedLenFeature):
            raise InvalidArgument(
                f"spec[{name!r}] must be a tf.io.FixedLenFeature, got {spec[name]!r}: all arrays "
                "of a batch need the same shape."
            )
        return spec[name]

    @contextlib.contextmanager
    def _copied(self, found: FoundFile, start: int, size: int) -> Iterator[Path]:
        """Yield a local file with these bytes, possibly the file itself."""
        if size == found.size and is_local(found.path):
            yield Path(found.path)
            return
        with tempfile.NamedTemporaryFile(dir=self._folder, prefix="records-") as copy:
            with found.at.system.open_input_file(found.at.path) as file:
                file.seek(start)
                left = size
                while left and (data := file.read(min(left, _BUFFER_BYTES))):
                    copy.write(data)
                    left -= len(data)
            copy.flush()
            yield Path(copy.name)


def _stretches(file: Any, found: FoundFile) -> Iterator[Stretch]:
    """Yield ranges of records of an uncompressed file, going from header to header."""
    offset = begin = start = rows = index = length = 0
    buffer = b""
    while offset < found.size:
        if not start <= offset <= start + len(buffer) - _HEADER.size:
            file.seek(offset)
            # In a local file nothing between distant headers has to be read.
            far = length > _FAR_BYTES and is_local(found.path)
            buffer, start = file.read(_HEADER.size if far else _BUFFER_BYTES), offset
        if len(buffer) < _HEADER.size:
            raise _corrupt("the file ends inside a record's header", found, offset, index)
        length, _ = _HEADER.unpack_from(buffer, offset - start)
        if length + _FRAME_BYTES > found.size - offset:
            what = f"a record would have {length:,} bytes, more than the file has left"
            raise _corrupt(f"{what}; is it a TFRecord file?", found, offset, index)
        offset += length + _FRAME_BYTES
        rows, index = rows + 1, index + 1
        if offset - begin >= _PIECE_BYTES:
            yield Stretch(begin, offset - begin, rows, rows)
            begin, rows = offset, 0
    if rows:
        yield Stretch(begin, offset - begin, rows, rows)


def _corrupt(what: str, found: FoundFile, offset: int, index: int) -> CorruptRecord:
    where = f"{found.path}, record {index} at byte {offset}"
    return CorruptRecord(f"{what} ({where}).", found.path, offset, index)


def _arrow(values: np.ndarray) -> pa.Array:
    array = pa.array(values.reshape(-1), pa.binary() if values.dtype == object else None)
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependency(
            "reading TFRecord files needs TensorFlow, even with other backends: pip install "
            "'gridflow[tensorflow]', or use Parquet files."
        ) from error
    return tf
