"""Maps the spool for every epoch."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.ipc

from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.feed.ledger import DatasetCounts
from gridflow.feed.schema import TensorSpec, tensor_specs
from gridflow.feed.spool.layout import FORMAT, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np


class SpoolReader:
    """Maps one dataset of a spool that was closed.

    Its rows lie in *chunks*, the record batches of all segments in order.

    Parameters
    ----------
    directory
        The spool's, as given to `SpoolWriter`.
    dataset
        The name.

    Attributes
    ----------
    chunk_rows : tuple of int
        Rows in each chunk.
    specs : dict
        Element type and shape by column (see `tensor_specs`).
    counts : DatasetCounts
        What the writer counted.

    Raises
    ------
    InvalidArgument
        When there is no such dataset, or its writer did not finish.
    """

    def __init__(self, directory: Path, dataset: str) -> None:
        self.dataset = dataset
        self._directory = directory / dataset
        try:
            manifest: dict[str, Any] = json.loads((self._directory / MANIFEST).read_text())
        except FileNotFoundError as error:
            there = sorted(path.parent.name for path in directory.glob(f"*/{MANIFEST}"))
            raise InvalidArgument(
                f"there is no finished dataset {dataset!r} in the spool {directory}; there are: "
                f"{', '.join(there) or 'none'}.{did_you_mean(dataset, there)}"
            ) from error
        if manifest["format"] != FORMAT:
            raise InvalidArgument(
                f"the spool {directory} has format {manifest['format']}, this version of gridflow "
                f"reads {FORMAT}: all processes of a job need the same gridflow."
            )
        self.counts = DatasetCounts(
            manifest["rows_in"], manifest["rows"], manifest["dropped"], nulls=manifest["nulls"]
        )
        self.schema: pa.Schema = pa.schema([])
        if manifest["schema"] is not None:
            encoded = pa.py_buffer(base64.b64decode(manifest["schema"]))
            self.schema = pa.ipc.read_schema(encoded)
        self.specs: dict[str, TensorSpec] = tensor_specs(self.schema)
        self._places = [
            (segment["file"], i)
            for segment in manifest["segments"]
            for i in range(len(segment["batches"]))
        ]
        self.chunk_rows: tuple[int, ...] = tuple(
            rows for segment in manifest["segments"] for rows in segment["batches"]
        )
        self._files: dict[str, pa.ipc.RecordBatchFileReader] = {}
        #: Opening a chunk, and finding a column by its name, take time for each of its columns.
        self._chunks: dict[int, pa.RecordBatch] = {}
        self._numbers = {name: number for number, name in enumerate(self.schema.names)}
        self._columns: dict[tuple[int, str], np.ndarray | pa.Array] = {}

    @property
    def rows(self) -> int:
        """Rows that can be read."""
        return self.counts.rows

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
            kind, shape = self.specs[name]
            if not isinstance(kind, str):
                rows = len(column)
                for _ in shape:
                    column = column.flatten()
                column = column.to_numpy().view(kind).reshape((rows, *shape))
            self._columns[key] = column
        return column

    def matrix(self, chunk: int, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Return some rows of columns of numbers of one and the same type, as (rows, columns).

        A copy, which Arrow makes in one go: for many columns that is much faster than one by one.
        """
        rows = self._chunk(chunk).select(self.numbers(names))
        matrix: np.ndarray = rows.slice(start, stop - start).to_tensor().to_numpy()
        return matrix

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the places of columns in the schema."""
        return [self._numbers[name] for name in names]

    def _chunk(self, chunk: int) -> pa.RecordBatch:
        batch = self._chunks.get(chunk)
        if batch is None:
            batch = self._chunks[chunk] = self._batch(chunk)
        return batch

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunks as Arrow record batches."""
        for chunk in range(len(self.chunk_rows)):
            # The first ones may have columns that were left out later.
            yield self._batch(chunk).select(self.schema.names)

    def _batch(self, chunk: int) -> pa.RecordBatch:
        file, index = self._places[chunk]
        reader = self._files.get(file)
        if reader is None:
            mapped = pa.memory_map(str(self._directory / file))
            reader = self._files[file] = pa.ipc.open_file(mapped)
        return reader.get_batch(index)
