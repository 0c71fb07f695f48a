"""Segments: Arrow files of rows, which are written or linked once, then read and deleted.

::

    <folder>/00000000.arrow   an Arrow file of one record batch
            /00000001.arrow   a link to a file that a feeder's task has written
            /00000001.part    which of its rows they are, and the form that they have here
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.types import is_list

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ASKED",
    "LEFT_OUT",
    "Located",
    "Segment",
    "delete",
    "lies_as",
    "read",
    "size_of",
    "store",
]

#: Of a segment's schema: columns that can't be fed, and why.
LEFT_OUT: Final = b"gridflow.left_out"
#: Of a segment's schema: each of its rows is to be answered; what to call them.
ASKED: Final = b"gridflow.asked"
#: A link keeps the whole file: rows that are less of it than this part are copied, so that the
#: files that are kept are never larger than what they are counted as by more than this.
_LEAST_PART: Final = 5


class Segment:
    """Rows in a file.

    Parameters
    ----------
    path : Path
        Of an uncompressed Arrow IPC file on a local disk.

    Attributes
    ----------
    path : Path
    batches : list of pyarrow.RecordBatch
        The rows, by reference to the mapped file: they stay when it has another name, or none.
    nbytes : int
        Of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        self.batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        self.nbytes = path.stat().st_size

    def delete(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Located:
    """Rows, and where they lie.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        The rows.
    path : str
        Of the file.
    node : tuple of int
        The file's number and size: another host has no such file.
    number : int
        Which of the file's record batches they are in.
    start : int
        The place of the first of them in it.
    """

    batch: pa.RecordBatch
    path: str
    node: tuple[int, int]
    number: int
    start: int = 0

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.batch.num_rows)

    @property
    def size(self) -> int:
        """The bytes of the whole file."""
        return self.node[1]

    def slice(self, first: int, rows: int) -> Located:
        """Return some of the rows."""
        return replace(self, batch=self.batch.slice(first, rows), start=self.start + first)

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


def lies_as(one: pa.Array, other: pa.Array) -> bool:
    """Return whether the values of an array are those of another by where they lie: no copy."""
    if one.offset != other.offset or _addresses(one) != _addresses(other):
        return False
    return not is_list(one.type) or lies_as(one.values, other.values)


def _addresses(array: pa.Array) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]


def size_of(rows: pa.RecordBatch | Segment) -> int:
    """Return about how many bytes there are.

    Not Arrow's ``nbytes`` of rows as they come from Spark: it looks at offsets, which Java leaves
    out of lists in lists that are all empty, and ends the process.
    """
    if isinstance(rows, Segment):
        return rows.nbytes
    return int(rows.get_total_buffer_size())


def store(folder: Path, number: int, batch: pa.RecordBatch, rows: pa.RecordBatch | Located) -> None:
    """Make a segment of rows.

    Parameters
    ----------
    folder : Path
    number : int
        Of the segment.
    batch : pyarrow.RecordBatch
        The rows, in the form that they are to have.
    rows : pyarrow.RecordBatch or Located
        As they came. If that form is only another view of a file, the file is linked.

    Raises
    ------
    OSError
        They can't be written. Nothing of the segment is left then.
    """
    path = _path(folder, number)
    if isinstance(rows, Located) and _link(path, batch, rows):
        return
    partial = path.with_suffix(".partial")
    try:
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
            file.write_batch(batch)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    partial.rename(path)


def read(folder: Path, number: int) -> pa.RecordBatch:
    """Return the rows of a segment, mapped."""
    path = _path(folder, number)
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        try:
            part = json.loads(_part(path).read_text())
        except FileNotFoundError:
            return file.get_batch(0)
        batch = file.get_batch(part["batch"]).slice(part["start"], part["rows"])
    found = _formed(batch, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(part["schema"]))))
    assert found is not None, path
    return found


def delete(folder: Path, number: int) -> None:
    """Delete a segment; who has mapped it keeps it."""
    path = _path(folder, number)
    for each in (path, _part(path)):
        each.unlink(missing_ok=True)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.arrow"


def _part(path: Path) -> Path:
    return path.with_suffix(".part")


def _link(path: Path, batch: pa.RecordBatch, rows: Located) -> bool:
    """Link the file in which rows lie, if they can be read there in the form they are to have."""
    if rows.size > _LEAST_PART * batch.nbytes:
        return False
    found = _formed(rows.batch, batch.schema) if batch.num_rows == rows.num_rows else None
    if found is None or not all(map(lies_as, found.columns, batch.columns)):
        return False
    part = {"batch": rows.number, "start": rows.start, "rows": rows.num_rows}
    schema = base64.b64encode(batch.schema.serialize().to_pybytes()).decode()
    try:
        _part(path).write_text(json.dumps({**part, "schema": schema}))
        path.hardlink_to(rows.path)
    except OSError:  # another disk, one without links or room, or the feeder has ended meanwhile
        _part(path).unlink(missing_ok=True)
        return False
    return True


def _formed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return rows with another schema, without a copy; None if that can't be."""
    columns = []
    for field in schema:
        place = batch.schema.get_field_index(field.name)
        column = None if place < 0 else _column(batch.column(place), field.type)
        if column is None or len(column) != batch.num_rows:
            return None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    if array.type.equals(kind):
        return array
    if not (pa.types.is_fixed_size_list(kind) and is_list(array.type)):
        return None
    items = _column(array.flatten(), kind.value_type)
    if items is None or len(items) != len(array) * kind.list_size:
        return None
    return pa.FixedSizeListArray.from_arrays(items, type=kind)
