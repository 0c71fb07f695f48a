"""Long bytes of Parquet files as Arrow's views: a value stays where it was first copied to.

In an array of type ``binary`` all values lie one after the other, so what is read grows, and is
copied each time. In one of type ``binary_view`` a long value has memory of its own.
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

#: What tells `pyarrow.parquet.ParquetFile` to make them; pyarrow before 21 can't.
AS_VIEWS: Final[dict[str, Any]] = (
    {"binary_type": pa.binary_view()}
    if "binary_type" in inspect.signature(pq.ParquetFile).parameters
    else {}
)
#: Under which key pyarrow notes the types of the columns that it wrote; no other program does.
_TYPES: Final = b"ARROW:schema"


def footer_for_views(footer: pq.FileMetaData) -> pq.FileMetaData:
    """Return a footer that doesn't say which of Arrow's types its columns had.

    Where it does, pyarrow makes those, whatever else it is told.
    """
    if _TYPES not in (footer.metadata or {}):
        return footer
    written = io.BytesIO()
    footer.write_metadata_file(written)
    # As long as it was, as the format wants it.
    other = written.getvalue().replace(_TYPES, _TYPES.replace(b":", b"-"))
    return pq.read_metadata(io.BytesIO(other))


def long_columns(group: pq.RowGroupMetaData, schema: pa.Schema) -> Sequence[str]:
    """Return the columns of bytes that are worth it: of 16 KiB a row or more, and in no struct.

    Parameters
    ----------
    group : pyarrow.parquet.RowGroupMetaData
    schema : pyarrow.Schema
        Of the columns that are read.
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
        and "." not in field.name  # is perhaps part of a struct
        and sizes.get(field.name, 0) >= least
    ]
