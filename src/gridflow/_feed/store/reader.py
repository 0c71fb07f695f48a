"""Maps the spool for every epoch."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.ipc

from gridflow._feed.ledger import DatasetCounts
from gridflow._feed.normalize import TensorSpec, tensor_specs, values_of
from gridflow.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np

    from gridflow._feed.plan.epochs import Window

#: On what the writer and the reader agree.
MANIFEST: Final = "manifest.json"
FORMAT: Final = 2


class Chunks(ABC):
    """Columns of rows that lie in *chunks*, record batches of one schema.

    Attributes
    ----------
    dataset : str
    chunk_rows : tuple of int
        Rows in each chunk.
    specs : dict
        Element type and shape by column (see `tensor_specs`).
    """

    dataset: str
    schema: pa.Schema
    specs: dict[str, TensorSpec]
    chunk_rows: tuple[int, ...]

    #: Any of its chunks costs the same at any time.
    chunks_together: Final = 0

    def __init__(self) -> None:
        #: Opening a chunk, and finding a column by its name, take time for each of its columns.
        self._chunks: dict[int, pa.RecordBatch] = {}
        self._columns: dict[tuple[int, str], np.ndarray | pa.Array] = {}
        self._numbers: dict[str, int] = {}

    def follow(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Give the windows of an epoch as they are; mapped files need no reading ahead."""
        return windows

    @property
    def rows(self) -> int:
        """Rows that can be read."""
        return sum(self.chunk_rows)

    def row_bytes(self, columns: list[str] | None = None) -> int:
        """Return about how many bytes a row of these columns has, at least 1."""
        names = list(self.specs) if columns is None else columns
        if not self.chunk_rows:
            return 1
        batch = self._batch(0).select(names)
        return max(1, int(batch.nbytes) // self.chunk_rows[0])

    def column(self, chunk: int, name: str) -> np.ndarray | pa.Array:
        """Return one column of one chunk, by reference to the mapped file.

        Numbers come as a read-only numpy array of shape (rows, ...), text and bytes as an Arrow
        array (of lists, where a row holds several).
        """
        key = chunk, name
        column = self._columns.get(key)
        if column is None:
            column = self._chunk(chunk).column(self._numbers[name])
            column = self._columns[key] = values_of(column, self.specs[name])
        return column

    def matrix(self, chunk: int, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Return some rows of columns of numbers of one and the same type, as (rows, columns).

        A copy, which Arrow makes in one go: for many columns that is much faster than one by one.
        """
        rows, numbers = self._chunk(chunk), self.numbers(names)
        # To select and to slice thousands of columns takes as long as to copy them.
        if numbers != list(range(rows.num_columns)):
            rows = rows.select(numbers)
        if stop - start < rows.num_rows:
            rows = rows.slice(start, stop - start)
        matrix: np.ndarray = rows.to_tensor().to_numpy()
        return matrix

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the places of columns in the schema."""
        return [self._numbers[name] for name in names]

    def _chunk(self, chunk: int) -> pa.RecordBatch:
        batch = self._chunks.get(chunk)
        if batch is None:
            batch = self._chunks[chunk] = self._batch(chunk)
        return batch

    @abstractmethod
    def _batch(self, chunk: int) -> pa.RecordBatch:
        """Return a chunk."""


class SpoolReader(Chunks):
    """Maps one dataset of a spool.

    Its rows lie in *chunks*, the record batches of all segments in order.

    Parameters
    ----------
    directory
        The spool's, as given to `SpoolWriter`.
    dataset
        The name.
    growing : bool, default False
        Whether a dataset will do of which more rows are to come; see `refresh`.

    Attributes
    ----------
    chunk_rows : tuple of int
        Rows in each chunk.
    specs : dict
        Element type and shape by column (see `tensor_specs`).
    counts : DatasetCounts
        What the writer counted; only of a complete dataset these are the rows that can be read.
    is_complete : bool
        Whether all rows are there.
    left_out : dict
        Columns that turned out not to be feedable, and why.

    Raises
    ------
    InvalidArgument
        When there is no such dataset, or its writer did not finish.
    """

    def __init__(self, directory: Path, dataset: str, *, growing: bool = False) -> None:
        super().__init__()
        self.dataset = dataset
        self._spool, self._directory = directory, directory / dataset
        self._growing = growing
        self.schema = pa.schema([])
        self._files: dict[str, pa.ipc.RecordBatchFileReader] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look at what there is by now; chunks keep their numbers.

        Raises
        ------
        InvalidArgument
            As when it was made.
        """
        manifest = _manifest(self._directory)
        if manifest is None or not (manifest["complete"] or self._growing):
            found = sorted(path.parent for path in self._spool.glob(f"*/{MANIFEST}"))
            there = [path.name for path in found if (_manifest(path) or {}).get("complete")]
            raise InvalidArgument(
                f"there is no finished dataset {self.dataset!r} in the spool {self._spool}; there "
                f"are: {', '.join(there) or 'none'}.{did_you_mean(self.dataset, there)}"
            )
        self.is_complete: bool = manifest["complete"]
        self.left_out: dict[str, str] = manifest["left_out"]
        self.counts = DatasetCounts(
            manifest["rows_in"], manifest["rows"], manifest["dropped"], nulls=manifest["nulls"]
        )
        schema = pa.schema([])
        if manifest["schema"] is not None:
            encoded = pa.py_buffer(base64.b64decode(manifest["schema"]))
            schema = pa.ipc.read_schema(encoded)
        if schema != self.schema:  # a column was left out
            self._chunks.clear()
            self.schema = schema
        self.specs = tensor_specs(self.schema)
        self._places = [
            (segment["file"], i)
            for segment in manifest["segments"]
            for i in range(len(segment["batches"]))
        ]
        self.chunk_rows = tuple(
            rows for segment in manifest["segments"] for rows in segment["batches"]
        )
        self._numbers = {name: number for number, name in enumerate(self.schema.names)}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunks as Arrow record batches."""
        for chunk in range(len(self.chunk_rows)):
            yield self._batch(chunk)

    def _batch(self, chunk: int) -> pa.RecordBatch:
        file, index = self._places[chunk]
        reader = self._files.get(file)
        if reader is None:
            mapped = pa.memory_map(str(self._directory / file))
            reader = self._files[file] = pa.ipc.open_file(mapped)
        # The first ones may have columns that were left out later.
        batch = reader.get_batch(index)
        if batch.num_columns == len(self.schema):
            return batch
        return batch.select(self.schema.names)  # it has columns that were left out later


def _manifest(directory: Path) -> dict[str, Any] | None:
    """Return what is said of a dataset, None if nothing is."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
    except FileNotFoundError:
        return None
    if manifest["format"] != FORMAT:
        raise InvalidArgument(
            f"the spool in {directory} has format {manifest['format']}, this version of gridflow "
            f"reads {FORMAT}: all processes of a job need the same gridflow."
        )
    return manifest
