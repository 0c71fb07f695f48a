"""The parts of files that one rank reads: the result of `TrainingContext.files`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gridflow._files.systems import Where

__all__ = ["FilePart"]


@dataclass(frozen=True)
class FilePart:
    """A part of a file, or a whole file.

    Attributes
    ----------
    path : str
        With its scheme; without one for a local path.
    size : int
        Approximate bytes of this part.
    row_group : int or None
        The row group of a Parquet file.
    offset : int or None
        For an uncompressed TFRecord file: the byte where its range of records begins.
    first, rows : int or None
        The first row of this part in the row group or range of records, and the number of rows.
        None for whole files.
    """

    path: str
    size: int
    where: Where
    row_group: int | None = None
    offset: int | None = None
    first: int | None = None
    rows: int | None = None

    def open(self) -> Any:
        """Open the whole file for reading, on any file system.

        Returns
        -------
        pyarrow.NativeFile
            A binary file object. Close it, or use it as a context manager.
        """
        return self.where.system.open_input_file(self.where.path)
