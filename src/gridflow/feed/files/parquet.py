"""Parquet: a piece is a row group, known by the footers alone."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gridflow.errors import DataError, SchemaError, did_you_mean
from gridflow.feed.column import leaf_type
from gridflow.feed.files.formats import Description, Format, Stretch
from gridflow.feed.schema import FeedOptions, Findings, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow.feed.files.shares import Piece
    from gridflow.files.listing import FoundFile

__all__ = ["ParquetFiles"]

_SAMPLE_ROWS: Final = 64
_FOOTERS_KEPT: Final = 256


class ParquetFiles(Format):
    """Columns of Parquet files.

    Parameters
    ----------
    files : sequence of FoundFile
    dataset : str
    columns : sequence of str
        What is read of them; empty: nothing is read, all of them count as bytes.
    options : FeedOptions
        The rule for nulls. With ``"drop"`` the row groups that may have some are read once more,
        to count what remains.
    """

    def __init__(
        self, files: Sequence[FoundFile], dataset: str, columns: Sequence[str], options: FeedOptions
    ) -> None:
        super().__init__(files, dataset)
        self._columns, self._options = list(columns), options
        self._footer = functools.lru_cache(_FOOTERS_KEPT)(self._read_footer)

    def describe(self, number: int) -> Description:
        """Look into the footer of a file."""
        footer = self._footer(number)
        schema = footer.schema.to_arrow_schema()
        for column in self._columns:
            if schema.get_field_index(column) < 0:
                raise SchemaError(self._no_column(column, schema, number))
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        nulls: Counter[str] = Counter()
        stretches = []
        for place, group in enumerate(groups):
            known = self._nulls_of(group, schema)
            rows = group.num_rows
            if any(known.values()) or None in known.values():
                rows = self._rows_without_nulls(number, place, rows, known, nulls)
            size = sum(
                chunk.total_compressed_size
                for chunk in map(group.column, range(group.num_columns))
                if not self._columns or _is_of(chunk.path_in_schema, self._columns)
            )
            if group.num_rows:
                stretches.append(Stretch(place, max(1, size), group.num_rows, rows))
        types = {column: str(schema.field(column).type) for column in self._columns}
        return Description(tuple(stretches), types, dict(nulls))

    def load(self, piece: Piece) -> pa.RecordBatch:
        """Read a row group."""
        rows = self._normalised(self._read(piece.file, piece.place), self.schema)[0]
        return rows.slice(piece.first, piece.rows)

    def _sample(self, descriptions: Sequence[Description]) -> pa.RecordBatch:
        number, stretch = self.first_stretch(descriptions)
        with self._open(number) as file:
            batches = file.iter_batches(_SAMPLE_ROWS, [stretch.place], self._columns)
            for batch in batches:
                sample, dropped = self._normalised(batch, None)
                if dropped < batch.num_rows:
                    return sample
        raise DataError(f"{self.files[number].path} has changed while it was looked at.")

    def _normalised(
        self, batch: pa.RecordBatch, expected: pa.Schema | None, findings: Findings | None = None
    ) -> tuple[pa.RecordBatch, int]:
        batch = batch.select(self._columns)  # in the order that was asked for
        return normalise(batch, self.dataset, self._options, expected, findings)

    def _read_footer(self, number: int) -> pq.FileMetaData:
        found = self.files[number]
        try:
            with found.at.system.open_input_file(found.at.path) as file:
                return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise DataError(f"{found.path} is no Parquet file, or is damaged: {error}") from error
        except OSError as error:
            raise DataError(f"{found.path} can't be read: {error}") from error

    def _open(self, number: int) -> pq.ParquetFile:
        at = self.files[number].at
        return pq.ParquetFile(
            at.system.open_input_file(at.path), metadata=self._footer(number), pre_buffer=True
        )

    def _read(self, number: int, place: int) -> pa.RecordBatch:
        with self._open(number) as file:
            table = file.read_row_group(place, self._columns)
        batches = table.combine_chunks().to_batches()
        if len(batches) > 1:
            raise DataError(
                f"row group {place} has more than 2 GiB of text in one column. Write smaller row "
                "groups: Spark's parquet.block.size, pyarrow's row_group_size."
            )
        empty = pa.RecordBatch.from_pylist([], schema=table.schema)
        return batches[0] if batches else empty

    def _nulls_of(self, group: Any, schema: pa.Schema) -> dict[str, int | None]:
        """Return how many nulls a row group has, by column; None where nobody has counted.

        The count of a column of arrays has empty arrays among it, so it tells only that of none.
        """
        found: dict[str, int | None] = {}
        for chunk in map(group.column, range(group.num_columns)):
            name = next((c for c in self._columns if _is_of(chunk.path_in_schema, [c])), None)
            if name is None:
                continue
            statistics = chunk.statistics
            known = statistics is not None and statistics.has_null_count
            count = int(statistics.null_count) if known else None
            kind = schema.field(name).type
            if (count and leaf_type(kind) is not kind) or None in (count, found.get(name, 0)):
                found[name] = None
            else:
                found[name] = (found.get(name) or 0) + (count or 0)
        return found

    def _rows_without_nulls(
        self,
        number: int,
        place: int,
        rows: int,
        known: dict[str, int | None],
        nulls: Counter[str],
    ) -> int:
        """Return the rows of a row group that can be fed; refuse nulls that no rule covers."""
        rule = self._options.nulls
        if rule == "drop":
            findings = Findings()
            batch = self._read(number, place)
            dropped = self._normalised(batch, None, findings)[1]
            nulls.update(findings.nulls)
            return rows - dropped
        for column, count in known.items():
            if count and not (isinstance(rule, dict) and column in rule):
                raise DataError(
                    f"column {column!r} of dataset {self.dataset!r} has nulls in {count:,} of "
                    f"{rows:,} rows of row group {place} of {self.files[number].path}. Give "
                    f"nulls='drop' to leave such rows out, or nulls={{{column!r}: value}}."
                )
        return rows

    def _no_column(self, column: str, schema: pa.Schema, number: int) -> str:
        path = self.files[number].path
        hint = did_you_mean(column, schema.names)
        if f"/{column}=" in path:
            hint = (
                f" It is part of the path, as partitionBy({column!r}) writes it: write it into the"
                " files as well, under another name."
            )
        return (
            f"dataset {self.dataset!r}: {path} has no column {column!r}. It has: "
            f"{', '.join(schema.names)}.{hint}"
        )


def _is_of(path: str, columns: Sequence[str]) -> bool:
    """Return whether a leaf of the schema belongs to one of the columns."""
    return any(path == column or path.startswith(f"{column}.") for column in columns)
