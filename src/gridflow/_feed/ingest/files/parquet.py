"""Parquet: a piece is a row group, known from the footers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gridflow._feed.ingest.files.formats import Description, Format, Stretch
from gridflow._feed.long_texts import LONG_BYTES
from gridflow._feed.normalize import FeedOptions, Findings, normalise
from gridflow._feed.types import leaf_type
from gridflow.errors import DataError, SchemaError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gridflow._feed.ingest.files.shares import Piece
    from gridflow._files.listing import FoundFile

__all__ = ["AS_VIEWS", "ParquetFiles", "footer_for_views", "is_cached", "long_columns"]

_SAMPLE_ROWS: Final = 64
_FOOTERS_KEPT: Final = 256


class ParquetFiles(Format):
    """Columns of Parquet files.

    `columns`: The columns to read; empty: nothing is read, and all columns count as bytes.
    `options`: The rule for nulls. With ``"drop"``, row groups that may have some are read once
        more, to count the remaining rows.
    """

    def __init__(
        self, files: Sequence[FoundFile], dataset: str, columns: Sequence[str], options: FeedOptions
    ) -> None:
        super().__init__(files, dataset)
        self._columns, self._options = list(columns), options
        self._wanted = frozenset(columns)
        self._footer = functools.lru_cache(_FOOTERS_KEPT)(self._read_footer)
        self._footer_for_views = functools.lru_cache(_FOOTERS_KEPT)(
            lambda number: footer_for_views(self._footer(number))
        )
        # Looking at all columns of a wide row group takes longer than reading it.
        self._range = functools.cache(self._find_range)
        self._long_columns = functools.cache(
            lambda number, place: long_columns(self._footer(number).row_group(place), self.schema)
        )

    def describe(self, number: int) -> Description:
        """Inspect the footer of a file."""
        footer = self._footer(number)
        schema = footer.schema.to_arrow_schema()
        fields = {column: _field_of(schema, column) for column in self._columns}
        for column, field in fields.items():
            if field is None:
                raise SchemaError(self._no_column(column, schema, number))
            if pa.types.is_struct(field.type):
                inner = ", ".join(f"'{column}.{each.name}'" for each in field.type)
                raise SchemaError(
                    f"column {column!r} of dataset {self.dataset!r} is a struct in "
                    f"{self.files[number].path}: select its fields, {inner}."
                )
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        nulls: Counter[str] = Counter()
        stretches = []
        for place, group in enumerate(groups):
            known = self._nulls_of(group, schema)
            rows = group.num_rows
            if any(known.values()) or None in known.values():
                rows = self._rows_without_nulls(number, place, rows, known, nulls)
            size = sum(chunk.total_compressed_size for chunk in self._chunks(group))
            if group.num_rows:
                stretches.append(Stretch(place, max(1, size), group.num_rows, rows))
        types = {column: str(field.type) for column, field in fields.items() if field is not None}
        return Description(tuple(stretches), types, dict(nulls))

    def load(self, piece: Piece, *, views: bool = False) -> pa.RecordBatch:
        """Read a row group."""
        long = self._long_columns(piece.file, piece.place) if views else ()
        if long:
            rows = self._with_views(piece.file, piece.place, long)
        else:
            rows = self._normalised(self._read(piece.file, piece.place), self.schema)[0]
        return rows.slice(piece.first, piece.rows)

    def _with_views(self, number: int, place: int, long: Sequence[str]) -> pa.RecordBatch:
        """Read a row group with long bytes as views, unless its rows must be changed."""
        with self._open(number, place, as_views=True) as file:
            table = file.read_row_group(place, long).combine_chunks()
        views = {name: table.column(name).chunk(0) for name in long}
        others = [name for name in self._columns if name not in views]
        read = self._read(number, place, others) if others else pa.RecordBatch.from_pydict(views)
        if not any(view.null_count for view in views.values()):
            if not others:
                return read.select(self._columns)
            expected = pa.schema([self.schema.field(name) for name in others])
            rest, dropped = self._normalised(read, expected)
            if not dropped:
                columns = views | dict(zip(rest.schema.names, rest.columns, strict=True))
                return pa.RecordBatch.from_pydict({name: columns[name] for name in self._columns})
        whole = dict(zip(read.schema.names, read.columns, strict=True)) | views
        return self._normalised(pa.RecordBatch.from_pydict(whole), self.schema)[0]

    def _sample(self, descriptions: Sequence[Description]) -> pa.RecordBatch:
        number, stretch = self.first_stretch(descriptions)
        with self._named(number), self._open(number, stretch.place) as file:
            batches = file.iter_batches(_SAMPLE_ROWS, [stretch.place], self._columns)
            for batch in batches:
                sample, dropped = self._normalised(batch, None)
                if dropped < batch.num_rows:
                    return sample
        raise DataError(f"{self.files[number].path} changed while it was being read.")

    def _normalised(
        self, batch: pa.RecordBatch, expected: pa.Schema | None, findings: Findings | None = None
    ) -> tuple[pa.RecordBatch, int]:
        batch, dropped = normalise(batch, self.dataset, self._options, expected, findings)
        # In the requested order, which differs from that of the files and of structs.
        there = set(batch.schema.names)
        return batch.select([name for name in self._columns if name in there]), dropped

    def _read_footer(self, number: int) -> pq.FileMetaData:
        found = self.files[number]
        try:
            with found.at.system.open_input_file(found.at.path) as file:
                return pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{found.path} is not a Parquet file, or is damaged: {error}"
            ) from error
        except OSError as error:
            raise DataError(f"{found.path} can't be read: {error}") from error

    @contextlib.contextmanager
    def _named(self, number: int) -> Iterator[None]:
        """Name the file that can't be read. The caller of `load` does that itself."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.files[number].path} can't be read: {error}") from error

    def _open(self, number: int, place: int, *, as_views: bool = False) -> pq.ParquetFile:
        """Open a file to read one of its row groups."""
        at, footer = self.files[number].at, self._footer(number)
        options: dict[str, Any] = {"metadata": footer}
        if as_views:
            options = {"metadata": self._footer_for_views(number), **AS_VIEWS}
        is_local = isinstance(at.system, fs.LocalFileSystem)
        if is_local and is_cached(at.path, *self._range(number, place)):
            return pq.ParquetFile(pa.memory_map(at.path), **options)
        return pq.ParquetFile(at.system.open_input_file(at.path), pre_buffer=True, **options)

    def _find_range(self, number: int, place: int) -> tuple[int, int]:
        """Return the byte range of the columns of a row group."""
        chunks = self._chunks(self._footer(number).row_group(place))
        begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
        ends = [
            begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)
        ]
        return min(begins), max(ends)

    def _chunks(self, group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
        """Return the columns of a row group that are read, or all if none are."""
        chunks = map(group.column, range(group.num_columns))
        return [c for c in chunks if not self._columns or self._column_of(c.path_in_schema)]

    def _column_of(self, path: str) -> str | None:
        """Return the column to which a leaf of the schema belongs."""
        parts = path.split(".")
        names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((name for name in names if name in self._wanted), None)

    def _read(
        self, number: int, place: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        with self._open(number, place) as file:
            table = file.read_row_group(place, self._columns if columns is None else columns)
        batches = table.combine_chunks().to_batches()
        if len(batches) > 1:
            raise DataError(
                f"row group {place} has more than 2 GiB of text in one column. Write smaller row "
                "groups: Spark's parquet.block.size, pyarrow's row_group_size."
            )
        empty = pa.RecordBatch.from_pylist([], schema=table.schema)
        return batches[0] if batches else empty

    def _nulls_of(self, group: Any, schema: pa.Schema) -> dict[str, int | None]:
        """Return the number of nulls in a row group, by column; None if unknown.

        For a column of arrays the count includes empty arrays, so only a count of zero is reliable.
        """
        found: dict[str, int | None] = {}
        for chunk in map(group.column, range(group.num_columns)):
            name = self._column_of(chunk.path_in_schema)
            if name is None:
                continue
            statistics = chunk.statistics
            known = statistics is not None and statistics.has_null_count
            count = int(statistics.null_count) if known else None
            field = _field_of(schema, name)
            assert field is not None, "describe() has checked that it exists"
            kind = field.type
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
        """Return the rows of a row group that can be fed; reject nulls that no rule covers."""
        rule = self._options.nulls
        if rule == "drop":
            findings = Findings()
            with self._named(number):
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
                f" It is part of the path, as written by partitionBy({column!r}): write it into "
                "the files as well, under another name."
            )
        return (
            f"dataset {self.dataset!r}: {path} has no column {column!r}. It has: "
            f"{', '.join(schema.names)}.{hint}"
        )


def _field_of(schema: pa.Schema, column: str) -> pa.Field | None:
    """Return a column or a struct field by path, or None."""
    if schema.get_field_index(column) >= 0:
        return schema.field(column)
    fields, name = list(schema), ""
    for part in column.split("."):
        name = f"{name}.{part}" if name else part  # a name may contain dots
        found = next((field for field in fields if field.name == name), None)
        if found is not None and pa.types.is_struct(found.type):
            fields, name = list(found.type), ""
        elif found is not None and column.endswith(name):
            return found
    return None


# Checks whether a file is in the page cache, so that it can be mapped instead of copied.

#: One byte is checked in this many: a page that is missing after all is read when needed.
_APART_BYTES: Final = 1 << 20
#: The fraction that may be missing: pages may be evicted at any time.
_LACKING: Final = 0.1


def is_cached(path: str, first: int, last: int) -> bool:
    """Return whether the kernel has a range of a local file in memory, as far as is known.

    Uses ``RWF_NOWAIT``, see preadv2(2). Network file systems and FUSE don't support it, so their
    files never count as cached. They must not be mapped: a read error would end the process with
    SIGBUS instead of raising an error.

    `first`, `last`: The range, in bytes; the last byte is excluded.
    """
    at_once = getattr(os, "RWF_NOWAIT", None)
    if at_once is None:  # not Linux
        return False
    places = [*range(first, last, _APART_BYTES), last - 1]
    byte, most = [bytearray(1)], len(places) * _LACKING
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    lacking = 0
    try:
        for place in places:
            try:
                lacking += not os.preadv(file, byte, place, at_once)
            except BlockingIOError:
                lacking += 1
            if lacking > most:
                return False
    except OSError:  # not supported there
        return False
    finally:
        os.close(file)
    return True


# Reads long bytes of Parquet files as Arrow views, which copies each value only once.
#
# An array of type ``binary`` stores all values consecutively, so it grows while it is read and is
# copied each time. In an array of type ``binary_view`` each long value has its own memory.

#: Option of `pyarrow.parquet.ParquetFile` for views; pyarrow before 21 doesn't have it.
AS_VIEWS: Final[dict[str, Any]] = (
    {"binary_type": pa.binary_view()}
    if "binary_type" in inspect.signature(pq.ParquetFile).parameters
    else {}
)
#: The key under which pyarrow stores the types of the columns it wrote; other programs don't.
_TYPES: Final = b"ARROW:schema"


def footer_for_views(footer: pq.FileMetaData) -> pq.FileMetaData:
    """Return a footer without the Arrow types of its columns.

    If it has them, pyarrow uses them, whatever the options say.
    """
    if _TYPES not in (footer.metadata or {}):
        return footer
    written = io.BytesIO()
    footer.write_metadata_file(written)
    # With the same length, as the format requires.
    other = written.getvalue().replace(_TYPES, _TYPES.replace(b":", b"-"))
    return pq.read_metadata(io.BytesIO(other))


def long_columns(group: pq.RowGroupMetaData, schema: pa.Schema) -> Sequence[str]:
    """Return the columns of bytes with 16 KiB per row or more, outside structs.

    `schema`: Of the columns that are read.
    """
    if not AS_VIEWS:
        return ()
    least = LONG_BYTES * max(1, group.num_rows)
    chunks = map(group.column, range(group.num_columns))
    sizes = {chunk.path_in_schema: chunk.total_uncompressed_size for chunk in chunks}
    return [
        field.name
        for field in schema
        if pa.types.is_binary(field.type)
        and "." not in field.name  # may be part of a struct
        and sizes.get(field.name, 0) >= least
    ]
