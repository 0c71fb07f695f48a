"""Segments: Arrow files of rows, which are written or linked once, then read and deleted.

::

    <folder>/00000000.arrow   an Arrow IPC file, uncompressed, so that it can be mapped
            /00000001.arrow   a link to such a file that somebody else has written
            /00000001.part    where only some of its rows are meant: which, and their form here

A segment has its name only when it is whole.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.types import is_list

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ASKED", "LEFT_OUT", "Located", "Segment", "size_of"]

#: Of a segment's schema: columns that can't be fed, and why.
LEFT_OUT: Final = b"gridflow.left_out"
#: Of a segment's schema: each of its rows is to be answered; what to call them.
ASKED: Final = b"gridflow.asked"
#: Beside a link: which rows of the file they are, and the form that they have here.
PART: Final = ".part"


class Segment:
    """Rows in a file.

    `path`: Path of an uncompressed Arrow IPC file on a local disk.
    `batches`: The rows, by reference to the mapped file: they stay valid when it is renamed or
        deleted.
    `nbytes`: Size of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A closed file stays mapped as long as there are batches: no descriptor remains open.
        with pa.memory_map(str(path)) as source:
            file = pa.ipc.open_file(source)
            self.batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        self.nbytes = path.stat().st_size

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


#: The segments that are in use, by device and inode: a mapped file keeps its inode.
_mapped: Final[WeakValueDictionary[tuple[int, int], Segment]] = WeakValueDictionary()


def mapped(path: Path) -> Segment:
    """Return the segment in a file, which all who use it in this process map once."""
    found = path.stat()
    file = found.st_dev, found.st_ino
    segment = _mapped.get(file)
    return _mapped.setdefault(file, Segment(path)) if segment is None else segment


@dataclass(frozen=True)
class Located:
    """Rows, and where they lie.

    `batch`: The rows.
    `path`: Of the file.
    `node`: The file's number and size: another host has no such file.
    `number`: Which of the file's record batches they are in.
    `start`: The place of the first of them in it.
    """

    batch: pa.RecordBatch
    path: str
    node: tuple[int, int]
    number: int
    start: int = 0

    @property
    def num_rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def size(self) -> int:
        """The bytes of the whole file."""
        return self.node[1]

    def slice(self, first: int, rows: int) -> Located:
        return replace(self, batch=self.batch.slice(first, rows), start=self.start + first)

    def part(self, schema: pa.Schema) -> str:
        """Return what `read` has to know of the rows beside the file."""
        rows = {"batch": self.number, "start": self.start, "rows": self.num_rows}
        return json.dumps({**rows, "schema": encoded(schema)})

    def told(self, first: int) -> dict[str, Any]:
        """Return what is sent in place of the rows; ``first`` is their place in the partition."""
        return {
            "first": first,
            "path": self.path,
            "node": self.node,
            "number": self.number,
            "start": self.start,
            "rows": self.num_rows,
        }


def _lies_as(one: pa.Array, other: pa.Array) -> bool:
    """Return whether the values of an array are those of another by where they lie: no copy."""
    if one.offset != other.offset or _addresses(one) != _addresses(other):
        return False
    return not is_list(one.type) or _lies_as(one.values, other.values)


def _addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


def size_of(rows: pa.RecordBatch | Segment) -> int:
    """Return the approximate size in bytes.

    Arrow's ``nbytes`` crashes for some rows from Spark: it reads offsets, which Java omits for
    nested lists that are all empty.
    """
    if isinstance(rows, Segment):
        return rows.nbytes
    return int(rows.get_total_buffer_size())


def path_of(folder: Path, number: int) -> Path:
    """Return where a segment lies."""
    return folder / f"{number:08d}.arrow"


def read(path: Path) -> pa.RecordBatch:
    """Return the rows of a segment of one batch, mapped."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        try:
            part = json.loads(path.with_suffix(PART).read_text())
        except FileNotFoundError:
            return file.get_batch(0)
        batch = file.get_batch(part["batch"]).slice(part["start"], part["rows"])
    return formed(batch, decoded(part["schema"]))


def encoded(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decoded(schema: str) -> pa.Schema:
    """Read what `encoded` returned."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema)))


def is_view(found: pa.RecordBatch, given: pa.RecordBatch) -> bool:
    """Return whether `formed` makes rows of those that are given: the same values, not copied."""
    if not found.num_rows == given.num_rows > 0:
        return False
    views = (_view(given, field) for field in found.schema)
    return all(
        view is not None and _lies_as(view, column)
        for view, column in zip(views, found.columns, strict=True)
    )


def formed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with another schema that they can have without a copy: see `is_view`."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [_view(batch, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _view(batch: pa.RecordBatch, field: pa.Field) -> pa.Array | None:
    """Return a column of rows as a field of another schema, None if that takes a copy."""
    place = batch.schema.get_field_index(field.name)
    return None if place < 0 else _column(batch.column(place), field.type)


def _column(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    if array.type.equals(kind):
        return array
    if not (pa.types.is_fixed_size_list(kind) and is_list(array.type)):
        return None
    items = _column(array.flatten(), kind.value_type)
    if items is None or len(items) != len(array) * kind.list_size:
        return None
    return pa.FixedSizeListArray.from_arrays(items, type=kind)
