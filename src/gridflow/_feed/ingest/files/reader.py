"""A rank's pieces of files as chunks of rows, like those of a spool."""

from __future__ import annotations

import collections
import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from gridflow.errors import DataError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gridflow._feed.ingest.files.formats import Format
    from gridflow._feed.ingest.files.shares import Piece
    from gridflow._feed.plan.epochs import Window

__all__ = ["FileReader"]

#: Approximate bytes of the chunks that are shuffled together; as many stay in memory while the next
#: ones are read.
_TOGETHER_BYTES: Final = 128 << 20
#: How far to look ahead for a chunk that hasn't been read yet.
_WINDOWS_AHEAD: Final = 32
_THREADS: Final = 2


class FileReader:
    """Reads one rank's pieces of a dataset's files. Replaces a `SpoolReader`.

    `dataset`: The name.
    `pieces`: Each is a chunk.
    `format`: The files' format.
    `specs`: Element type and shape of the columns that are read.
    `schema`: The same columns, as in a spool.
    `left_out`: Columns that can't be fed, and why.
    `chunks_together`: See `gridflow._feed.plan.epochs.BatchPlan`.
    """

    def __init__(self, dataset: str, pieces: Sequence[Piece], format: Format) -> None:  # noqa: A002 (what it is)
        self.dataset = dataset
        self._pieces, self._format = tuple(pieces), format
        self.schema, self.specs = format.schema, format.specs
        self.left_out: dict[str, str] = dict(format.left_out)
        self.chunk_rows = tuple(piece.rows for piece in pieces)
        chunk_bytes = max(1, self.rows * self.row_bytes() // max(1, len(pieces)))
        self.chunks_together = max(1, _TOGETHER_BYTES // chunk_bytes)
        # Threads read chunks, two at a time if memory allows.
        self._chunks_ahead = min(_THREADS, max(1, self.chunks_together - 1))
        self._lock = threading.Lock()
        self._chunks: collections.OrderedDict[int, Future[dict[str, Any]]]
        self._chunks = collections.OrderedDict()
        #: How many readers need a chunk in their current or next windows.
        self._needed: collections.Counter[int] = collections.Counter()
        self._threads: ThreadPoolExecutor | None = None

    def refresh(self) -> None:
        """Do nothing: files are all there."""

    @property
    def rows(self) -> int:
        """Rows that can be read."""
        return sum(self.chunk_rows)

    def row_bytes(self, columns: list[str] | None = None) -> int:
        """Return about how many bytes a row of these columns has, at least 1."""
        sizes = self._format.row_bytes
        return max(1, sum(sizes[name] for name in (sizes if columns is None else columns)))

    def column(self, chunk: int, name: str) -> np.ndarray | pa.Array:
        """Return one column of one chunk, as `SpoolReader.column` does."""
        return self._chunk(chunk)[name]

    def matrix(self, chunk: int, names: Sequence[str], start: int, stop: int) -> np.ndarray:
        """Return some rows of columns of numbers, as (rows, columns)."""
        columns = self._chunk(chunk)
        return np.stack([columns[name][start:stop].reshape(-1) for name in names], axis=1)

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the places of columns in the schema."""
        return [self.schema.get_field_index(name) for name in names]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the chunks as Arrow record batches."""
        for piece in self._pieces:
            yield self._load_batch(piece)

    def follow(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield the windows of an epoch, and read ahead for the next ones."""
        ahead: collections.deque[tuple[Window, frozenset[int]]] = collections.deque()
        current: frozenset[int] = frozenset()
        try:
            while True:
                self._look_ahead(windows, ahead)
                if not ahead:
                    return
                window, chunks = ahead.popleft()
                with self._lock:
                    self._needed.update(chunks)
                    self._needed.subtract(current)
                current = chunks
                self._start(sorted(chunks))
                following = self._following(chunks, ahead)
                with self._lock:
                    self._forget(following, is_shuffled=window.positions is not None)
                self._start(following)
                yield window
        finally:
            with self._lock:
                self._needed.subtract(current)
                self._needed += collections.Counter()  # without zeros

    def _look_ahead(
        self, windows: Iterator[Window], ahead: collections.deque[tuple[Window, frozenset[int]]]
    ) -> None:
        """Look at windows until they need as many further chunks as are read ahead."""
        while len(ahead) < _WINDOWS_AHEAD and (
            not ahead or len(self._following(ahead[0][1], ahead)) < self._chunks_ahead
        ):
            window = next(windows, None)
            if window is None:
                return
            ahead.append((window, frozenset(piece.chunk for piece in window.pieces)))

    def _following(
        self, chunks: frozenset[int], ahead: Iterable[tuple[Window, frozenset[int]]]
    ) -> list[int]:
        """Return the chunks to read next, in the order in which they are needed."""
        found: dict[int, None] = {}
        for _, needed in ahead:
            if len(found) >= self._chunks_ahead:
                break
            found.update(dict.fromkeys(sorted(needed - chunks)))
        return list(found)

    def _start(self, chunks: Iterable[int]) -> None:
        """Start reading chunks that aren't loaded."""
        with self._lock:
            for chunk in chunks:
                if chunk in self._chunks:
                    self._chunks.move_to_end(chunk)
                    continue
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(_THREADS, "gridflow-files")
                self._chunks[chunk] = self._threads.submit(self._load, self._pieces[chunk])

    def _forget(self, keep: Sequence[int], *, is_shuffled: bool) -> None:
        """Drop unneeded chunks, the least recently used first, down to those of a shuffle.

        Without shuffling, an epoch never returns to a chunk: unless all can stay for the next
        epoch, none does.
        """
        most = 2 * self.chunks_together
        if not is_shuffled and len(self._pieces) > most:
            most = 0
        for chunk in list(itertools.islice(self._chunks, len(self._chunks))):
            if len(self._chunks) <= most:
                return
            if chunk not in keep and self._needed[chunk] <= 0:
                del self._chunks[chunk]

    def _chunk(self, chunk: int) -> dict[str, Any]:
        with self._lock:
            future = self._chunks.get(chunk)
        if future is None:
            self._start([chunk])
            with self._lock:
                future = self._chunks[chunk]
        return future.result()

    def _load(self, piece: Piece) -> dict[str, Any]:
        from gridflow._feed.normalize import values_of

        batch = self._load_batch(piece, views=True)
        return {name: values_of(batch.column(name), spec) for name, spec in self.specs.items()}

    def _load_batch(self, piece: Piece, *, views: bool = False) -> pa.RecordBatch:
        path = self._format.path_of(piece)
        try:
            batch = self._format.load(piece, views=views)
        except (DataError, SchemaError) as error:
            raise DataError(f"{error} (In {path}.)") from error
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} can't be read: {error}") from error
        if batch.num_rows != piece.rows:
            raise DataError(
                f"{path} has changed since training started: it now has {batch.num_rows:,} rows "
                f"where there were {piece.rows:,}. Train on files that don't change."
            )
        return batch
