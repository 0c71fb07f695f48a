"""What `TrainingContext.files` returns: the parts of files that one rank is to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridflow._files.systems import Where

__all__ = ["FilePart"]


@dataclass(frozen=True)
class FilePart:
    """A part of a file, or a whole one.

    Attributes
    ----------
    path : str
        With its scheme; a local path as it is.
    size : int
        Bytes of this part, about.
    row_group : int or None
        Of a Parquet file: which of its row groups.
    offset : int or None
        Of an uncompressed TFRecord file: the byte where the first of its range of records begins.
    first, rows : int or None
        Of the row group or range of records: the first row of this part, and how many there are.
        None where files are taken whole.
    """

    path: str
    size: int
    where: Where
    row_group: int | None = None
    offset: int | None = None
    first: int | None = None
    rows: int | None = None

    def open(self) -> Any:
        """Open the whole file for reading, wherever it lies.

        Returns
        -------
        pyarrow.NativeFile
            A file object of bytes, to be closed or used as a context manager.
        """
        return self.where.system.open_input_file(self.where.path)
