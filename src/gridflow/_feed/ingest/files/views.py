"""Reads long bytes of Parquet files as Arrow views, which copies each value only once.

An array of type ``binary`` stores all values consecutively, so it grows while it is read and is
copied each time. In an array of type ``binary_view`` each long value has its own memory.
"""

from __future__ import annotations

import inspect
import io
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from gridflow._feed.long_texts import LONG_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AS_VIEWS", "footer_for_views", "long_columns"]

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
