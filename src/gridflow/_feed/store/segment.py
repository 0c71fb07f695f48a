"""An Arrow file of rows that somebody else has written, to be taken over or read and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.types import is_list

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Segment", "lies_as", "size_of"]


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
