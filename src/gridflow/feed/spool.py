"""The spool: the rows of one rank on its local disk, written once, mapped for every epoch.

::

    <directory>/<dataset>/manifest.json       rows, schema, segments; written last
    <directory>/<dataset>/00000.arrow         Arrow IPC file, uncompressed, so that it can be mapped

A segment has its final name only when it is whole.
"""

from __future__ import annotations

import base64
import errno
import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.ipc

from gridflow.errors import DataError, InvalidArgument, did_you_mean
from gridflow.feed.ledger import DatasetCounts
from gridflow.feed.schema import FeedOptions, Findings, TensorSpec, normalise, tensor_specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    import numpy as np

__all__ = ["SpoolReader", "SpoolWriter"]

_MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
#: Batches smaller than this are joined before they are written: each one costs the reader
#: some microseconds and the file some hundred bytes per column.
_SMALL_BYTES: Final = 1 << 20
_SMALL_ROWS: Final = 4096
_DISK_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SpoolWriter:
    """Writes datasets, batch by batch.

    Parameters
    ----------
    directory
        Where; made when missing. What an earlier attempt left of a dataset is replaced.
    options
        The rule for nulls.
    segment_bytes : int, default 32 MiB
        Size at which a new segment is started.
    """

    def __init__(
        self,
        directory: Path,
        options: FeedOptions | None = None,
        segment_bytes: int = 32 << 20,
    ) -> None:
        if segment_bytes < 1:
            raise InvalidArgument(f"segment_bytes must be positive, got {segment_bytes}.")
        self._directory = directory
        self._options = options or FeedOptions()
        self._segment_bytes = segment_bytes
        self._datasets: dict[str, _DatasetWriter] = {}

    def declare(self, dataset: str, schema: pa.Schema | None = None) -> None:
        """Make sure that the dataset exists even if no row of it ever comes.

        ``schema`` is that of the rows as they would arrive, when it is known.
        """
        writer = self._writer(dataset)
        if schema is not None and writer.schema is None:
            empty = pa.RecordBatch.from_arrays(
                [pa.array([], kind) for kind in schema.types], schema=schema
            )
            writer.unseen, _ = normalise(empty, dataset, self._options, None, writer.findings)

    def write(self, dataset: str, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises
        ------
        DataError
            When rows break a rule (see `gridflow.feed.schema.normalise`), or the disk is full.
        """
        self._writer(dataset).write(batch)

    def close(self) -> dict[str, DatasetCounts]:
        """Finish all datasets; only then can they be read."""
        return {name: writer.close() for name, writer in self._datasets.items()}

    @property
    def left_out(self) -> dict[str, dict[str, str]]:
        """Columns that turned out not to be feedable, and why, by dataset."""
        return {name: dict(writer.findings.left_out) for name, writer in self._datasets.items()}

    def abort(self) -> None:
        """Close the files as they are, without a manifest: nothing can be read."""
        for writer in self._datasets.values():
            writer.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _writer(self, dataset: str) -> _DatasetWriter:
        writer = self._datasets.get(dataset)
        if writer is None:
            if not re.fullmatch(r"\w+", dataset):
                raise InvalidArgument(
                    f"a dataset's name is made of letters, digits and _, got {dataset!r}."
                )
            writer = _DatasetWriter(
                dataset, self._directory / dataset, self._options, self._segment_bytes
            )
            self._datasets[dataset] = writer
        return writer


@dataclass
class _Segment:
    file: str
    batches: list[int] = field(default_factory=list)
    bytes: int = 0


class _DatasetWriter:
    def __init__(
        self, dataset: str, directory: Path, options: FeedOptions, segment_bytes: int
    ) -> None:
        self._dataset = dataset
        self._directory = directory
        self._options = options
        self._segment_bytes = segment_bytes
        self.schema: pa.Schema | None = None
        #: A batch without rows that tells the schema while no row has.
        self.unseen: pa.RecordBatch | None = None
        self.findings = Findings()
        self._rows_in = self._rows = self._dropped = 0
        self._segments: list[_Segment] = []
        self._sink: pa.OSFile | None = None
        self._file: pa.ipc.RecordBatchFileWriter | None = None
        self._small: list[pa.RecordBatch] = []
        self._small_rows = self._small_bytes = 0
        self._counts: DatasetCounts | None = None
        with _disk_full_explained(directory, 0):
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)

    def write(self, batch: pa.RecordBatch) -> None:
        rows_in = batch.num_rows
        batch, dropped = normalise(batch, self._dataset, self._options, self.schema, self.findings)
        self._rows_in += rows_in
        self._dropped += dropped
        rows = batch.num_rows
        if not rows:
            self.unseen = self.unseen or batch
            return
        if self.schema is None:
            self.schema = batch.schema
        elif len(self.schema) > len(batch.schema):
            # A column is left out from now on: a file has one schema.
            self._flush_small()
            with _disk_full_explained(self._directory, 0):
                self._end_segment()
            self.schema = batch.schema
        self._rows += rows
        size = batch.nbytes
        if size >= _SMALL_BYTES or rows >= _SMALL_ROWS:
            self._flush_small()
            self._append(batch, size)
            return
        self._small.append(batch)
        self._small_rows += rows
        self._small_bytes += size
        if self._small_bytes >= _SMALL_BYTES or self._small_rows >= _SMALL_ROWS:
            self._flush_small()

    def _flush_small(self) -> None:
        if self._small:
            batch = pa.concat_batches(self._small) if len(self._small) > 1 else self._small[0]
            self._append(batch, self._small_bytes)
            self._small, self._small_rows, self._small_bytes = [], 0, 0

    def _append(self, batch: pa.RecordBatch, size: int) -> None:
        with _disk_full_explained(self._directory, size):
            if self._file is None:
                segment = _Segment(f"{len(self._segments):05d}.arrow")
                self._sink = pa.OSFile(str(self._directory / f"{segment.file}.tmp"), "wb")
                self._file = pa.ipc.new_file(self._sink, self.schema)
                self._segments.append(segment)
            self._file.write_batch(batch)
            segment = self._segments[-1]
            segment.batches.append(batch.num_rows)
            segment.bytes += size
            if segment.bytes >= self._segment_bytes:
                self._end_segment()

    def _end_segment(self) -> None:
        if self._file is None or self._sink is None:
            return
        self._file.close()
        self._sink.close()
        self._file = self._sink = None
        path = self._directory / self._segments[-1].file
        path.with_name(f"{path.name}.tmp").rename(path)

    def close(self) -> DatasetCounts:
        if self._counts is None:
            self._flush_small()
            schema = self.schema
            if schema is None and self.unseen is not None:
                schema = self.unseen.schema
            encoded = None
            if schema is not None:
                encoded = base64.b64encode(schema.serialize().to_pybytes()).decode()
            counts = DatasetCounts(
                self._rows_in, self._rows, self._dropped, nulls=dict(self.findings.nulls)
            )
            with _disk_full_explained(self._directory, 0):
                self._end_segment()
                manifest = {
                    "format": _FORMAT,
                    **asdict(counts),
                    "schema": encoded,
                    "segments": [
                        {**asdict(segment), "rows": sum(segment.batches)}
                        for segment in self._segments
                    ],
                }
                path = self._directory / f"{_MANIFEST}.tmp"
                path.write_text(json.dumps(manifest))
                path.rename(self._directory / _MANIFEST)
            self._counts = counts
        return self._counts

    def abort(self) -> None:
        # Not the IPC writer: it would still write a footer, which fails again on a full disk.
        if self._sink is not None:
            self._sink.close()
        self._file = self._sink = None
        self._small = []


class _disk_full_explained:  # noqa: N801 - used like a function
    """Turn "no space left" into an error that tells what to do."""

    def __init__(self, directory: Path, needed: int) -> None:
        self._directory = directory
        self._needed = needed

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not (isinstance(error, OSError) and error.errno in _DISK_FULL):
            return
        place = self._directory
        while not place.exists() and place != place.parent:
            place = place.parent
        free = shutil.disk_usage(place).free
        raise DataError(
            f"the spool in {self._directory} can't grow: {error.strerror or error}. The next "
            f"{self._needed / 2**20:.1f} MiB were to be written, {free / 2**20:.1f} MiB are free "
            f"there. Give a larger disk with spool_dir=, or by spark.local.dir; the spool needs "
            f"room for all rows of its rank, uncompressed."
        ) from error


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
            manifest: dict[str, Any] = json.loads((self._directory / _MANIFEST).read_text())
        except FileNotFoundError as error:
            there = sorted(path.parent.name for path in directory.glob(f"*/{_MANIFEST}"))
            raise InvalidArgument(
                f"there is no finished dataset {dataset!r} in the spool {directory}; there are: "
                f"{', '.join(there) or 'none'}.{did_you_mean(dataset, there)}"
            ) from error
        if manifest["format"] != _FORMAT:
            raise InvalidArgument(
                f"the spool {directory} has format {manifest['format']}, this version of gridflow "
                f"reads {_FORMAT}: all processes of a job need the same gridflow."
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
