"""The interface of a file format: its pieces, and their rows as record batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow._feed.normalize import tensor_specs
from gridflow.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from gridflow._feed.ingest.files.shares import Piece
    from gridflow._feed.normalize import TensorSpec
    from gridflow._files.listing import FoundFile

__all__ = ["Description", "Format", "Stretch"]


@dataclass(frozen=True)
class Stretch:
    """A piece of one file, before it is assigned to ranks.

    `place`, `size`: See `gridflow._feed.ingest.files.shares.Piece`.
    `rows_in`, `rows`: Rows in the piece, and those that remain after dropping rows with nulls.
    """

    place: int
    size: int
    rows_in: int
    rows: int


@dataclass(frozen=True)
class Description:
    """The contents of one file. Consists of JSON types: ranks exchange it.

    `types`: Types of the columns that are read.
    `nulls`: Dropped rows with a null, by column.
    `is_divisible`: See `gridflow._feed.ingest.files.shares.Piece`.
    """

    stretches: tuple[Stretch, ...]
    types: dict[str, str] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    is_divisible: bool = True


class Format(ABC):
    """The files of one dataset, and how to read them.

    `dataset`: The name, for errors.
    `schema`: As returned by `gridflow._feed.normalize.normalise`. Set by `peek`.
    `row_bytes`: Approximate bytes per row, by column.
    `left_out`: Columns that can't be fed, with the reason.
    """

    schema: pa.Schema
    specs: dict[str, TensorSpec]
    row_bytes: dict[str, int]

    def __init__(self, files: Sequence[FoundFile], dataset: str) -> None:
        self.files, self.dataset = tuple(files), dataset
        self.left_out: dict[str, str] = {}

    def path_of(self, piece: Piece) -> str:
        """Return the path of a piece, for errors."""
        return self.files[piece.file].path

    def peek(self, descriptions: Sequence[Description]) -> None:
        """Determine types and shapes from the first rows; the same on every rank."""
        self._check_types(descriptions)
        sample = self._sample(descriptions)
        self.schema, self.specs = sample.schema, tensor_specs(sample.schema)
        rows = max(1, sample.num_rows)
        self.row_bytes = {
            name: max(1, int(sample.column(name).nbytes) // rows) for name in sample.schema.names
        }

    def _check_types(self, descriptions: Sequence[Description]) -> None:
        first = descriptions[0].types
        for file, description in zip(self.files, descriptions, strict=True):
            for column, kind in description.types.items():
                if kind != first[column]:
                    raise SchemaError(
                        f"column {column!r} of dataset {self.dataset!r} has the type "
                        f"{first[column]} in {self.files[0].path} and {kind} in {file.path}. Write "
                        "all files with the same schema, or leave out those that differ."
                    )

    def first_stretch(self, descriptions: Sequence[Description]) -> tuple[int, Stretch]:
        """Return the first stretch with rows, and its file's index."""
        for number, description in enumerate(descriptions):
            for stretch in description.stretches:
                if stretch.rows:
                    return number, stretch
        names = ", ".join(file.path for file in self.files[:3])
        raise SchemaError(f"dataset {self.dataset!r} has no rows: {names}.")

    @abstractmethod
    def describe(self, number: int) -> Description:
        """Inspect the file with this index; may be called from several threads."""

    @abstractmethod
    def load(self, piece: Piece, *, views: bool = False) -> pa.RecordBatch:
        """Return the rows of a piece, in the dataset's schema; may be called from threads.

        With ``views``, long bytes may have the type ``binary_view`` instead of ``binary``.
        """

    @abstractmethod
    def _sample(self, descriptions: Sequence[Description]) -> pa.RecordBatch:
        """Return some of the first rows."""


def nulls_of(descriptions: Sequence[Description]) -> dict[str, int]:
    """Return the number of dropped rows with a null, by column."""
    nulls: Counter[str] = Counter()
    for description in descriptions:
        nulls.update(description.nulls)
    return dict(nulls)


def encode(description: Description) -> dict[str, Any]:
    """Convert a description to JSON types."""
    return {
        "stretches": [[s.place, s.size, s.rows_in, s.rows] for s in description.stretches],
        "types": description.types,
        "nulls": description.nulls,
        "is_divisible": description.is_divisible,
    }


def decode(encoded: dict[str, Any]) -> Description:
    """Read what `encode` returned."""
    stretches = tuple(Stretch(*numbers) for numbers in encoded.pop("stretches"))
    return Description(stretches, **encoded)
