"""The segments of a stream, as files: rows that were written, or a link to where they lie.

::

    <folder>/00000000.arrow   an Arrow file of one record batch
            /00000001.arrow   a link to a file that a feeder's task has written
            /00000001.part    which of its rows they are, and the form that they have here
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.push.located import Located
from gridflow._feed.store.segment import lies_as
from gridflow._feed.types import is_list

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["delete", "read", "store"]

#: A link keeps the whole file: rows that are less of it than this part are copied, so that the
#: files that are kept are never larger than what they are counted as by more than this.
_LEAST_PART: Final = 5


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
