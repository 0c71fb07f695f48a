"""A rank's rows in files for TensorFlow's own operations, for workers without Python.

Under ParameterServerStrategy the chief traces the pipeline of a dataset, and it runs inside the
workers' TensorFlow servers, which can't read Arrow files. So each column of the spool is written
once more::

    <spool>/<dataset>/records/<column>.tfrecord

Every record holds the values of some consecutive rows as a serialized ``TensorProto``
(https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/framework/tensor.proto),
which ``tf.io.parse_tensor`` reads. All columns are cut at the same rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow._feed.store import SpoolReader
from gridflow.errors import DataError
from gridflow.tfrecord.framing import write_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from gridflow._feed.normalize import TensorSpec

__all__ = ["FOLDER", "OWN_ROWS", "decode_specs", "encode_specs", "tensor_proto", "write"]

#: Subfolder next to the spool's files of a dataset.
FOLDER: Final = "records"
#: The path of a worker's rows, relative to the working directory of its server.
SPOOL_LINK: Final = "spool"
#: File with the number of the worker's own rows, and the worker's index.
OWN_ROWS: Final = "own_rows.tensor"
_RECORD_BYTES: Final = 64 << 10
_MOST_ROWS: Final = 1024
#: ``DataType`` of TensorFlow's types.proto.
_STRING: Final = 7
_TYPES: Final = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "int64": 9,
    "bool": 10,
    "uint16": 17,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
}


def write(
    spool: Path, dataset: str, own_rows: int | None = None, *, worker: int = 0
) -> dict[str, TensorSpec]:
    """Write the records of a dataset of a closed spool; return its columns.

    `own_rows`: Rows that count outside training; default: all.
    `worker`: Index of the worker.
    Raises `DataError`: The disk is full or can't be written.
    """
    reader = SpoolReader(spool, dataset)
    folder = spool / dataset / FOLDER
    rows = max(1, min(_MOST_ROWS, _RECORD_BYTES // reader.row_bytes()))
    try:
        folder.mkdir(exist_ok=True)
        own = np.array([reader.rows if own_rows is None else own_rows, worker], np.int64)
        (folder / OWN_ROWS).write_bytes(tensor_proto(own, own.dtype, ()))
        for name, (kind, shape) in reader.specs.items():
            known = tuple(size or 0 for size in shape)
            write_records(folder / f"{name}.tfrecord", _column(reader, name, kind, known, rows))
    except OSError as error:
        raise DataError(
            f"dataset {dataset!r} can't be written for the parameter servers' workers to "
            f"{folder}: {error}. With strategy='parameter_server' the spool needs twice the space "
            "of the rows: choose a larger disk with Spool(dir=…) or spark.local.dir."
        ) from error
    return reader.specs


def _column(
    reader: SpoolReader, name: str, kind: Any, shape: tuple[int, ...], rows: int
) -> Iterator[bytes]:
    for chunk, count in enumerate(reader.chunk_rows):
        values = reader.column(chunk, name)
        for first in range(0, count, rows):
            yield tensor_proto(values[first : first + rows], kind, shape)


def tensor_proto(values: np.ndarray | pa.Array, kind: Any, row_shape: tuple[int, ...]) -> bytes:
    """Return rows of one column as a serialized ``TensorProto``.

    `values` (numpy array, or Arrow array of text or bytes): The rows; Arrow arrays may hold lists
        of fixed length.
    """
    shape = (len(values), *row_shape)
    dims = b"".join(_field(2, _varint_field(1, size)) for size in shape)
    if isinstance(kind, str):
        while isinstance(values, pa.ListArray | pa.FixedSizeListArray):
            values = values.flatten()
        texts: list[str | bytes] = pa.array(values).to_pylist()
        content = b"".join(_field(8, _bytes_of(text)) for text in texts)
        if len(values) != math.prod(shape):
            raise DataError(f"{len(values)} values don't make up rows of shape {row_shape}.")
        return _varint_field(1, _STRING) + _field(2, dims) + content
    content = np.ascontiguousarray(values).tobytes()
    return _varint_field(1, _TYPES[np.dtype(kind).name]) + _field(2, dims) + _field(4, content)


def encode_specs(specs: Mapping[str, TensorSpec]) -> dict[str, list[Any]]:
    """Return types and shapes of columns as JSON types."""
    return {
        name: [kind if isinstance(kind, str) else kind.name, list(shape)]
        for name, (kind, shape) in specs.items()
    }


def decode_specs(specs: Mapping[str, Sequence[Any]]) -> dict[str, TensorSpec]:
    """Read what `encode_specs` returned."""
    return {
        name: ("string" if kind == "string" else np.dtype(kind), tuple(shape))
        for name, (kind, shape) in specs.items()
    }


def _bytes_of(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 (seven bits a byte)
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content
