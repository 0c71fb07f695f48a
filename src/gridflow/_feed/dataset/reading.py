"""Interfaces of readers of one rank's rows, from its spool, files or a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa

    from gridflow._feed.normalize import TensorSpec
    from gridflow._feed.plan.epochs import Window

__all__ = ["ChunkReader", "Reader"]


class ChunkReader(Protocol):
    """Rows of one dataset in numbered *chunks*; see `gridflow._feed.store.SpoolReader`."""

    dataset: str
    schema: pa.Schema
    specs: dict[str, TensorSpec]
    chunk_rows: tuple[int, ...]

    @property
    def chunks_together(self) -> int:
        """See `gridflow._feed.plan.epochs.BatchPlan`."""

    @property
    def rows(self) -> int:
        """Rows that can be read."""

    def row_bytes(self, columns: list[str] | None = None) -> int:
        """Return the approximate bytes per row of these columns, at least 1."""

    def column(self, chunk: int, name: str) -> np.ndarray | pa.Array:
        """Return a column of a chunk: numbers in numpy, text as an Arrow array."""

    def matrix(self, chunk: int, names: Sequence[str], start: int, stop: int) -> Any:
        """Return some rows of columns of numbers, as (rows, columns)."""

    def numbers(self, names: Sequence[str]) -> list[int]:
        """Return the positions of columns in the schema."""

    def follow(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield the windows of an epoch, with their rows loaded."""


class Reader(ChunkReader, Protocol):
    """All rows of one rank.

    `left_out`: Columns that can't be fed, and why.
    """

    left_out: dict[str, str]

    def refresh(self) -> None:
        """Update the view of arriving rows; chunks keep their numbers."""
