"""Data for plain local processes: arrays and tables, split among the ranks as Arrow files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from gridflow.errors import InvalidArgument, SchemaError
from gridflow.feed.column import reason_against

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["feedable", "partition", "read", "to_table"]

_TUPLE_COLUMNS: Final = ("x", "y", "sample_weight")
_ROWS_PER_BATCH: Final = 10_000
_RENAME: Final = "Rename or drop all but one."


def partition(
    data: Mapping[str, Any], num_ranks: int, directory: Path
) -> dict[str, tuple[int, ...]]:
    """Write each rank's rows to ``<directory>/rank-<r>/<dataset>.arrow``.

    Each rank gets consecutive rows; the ranks' numbers of rows differ by at most one.

    Parameters
    ----------
    data : mapping of dataset name to rows
        See `to_table` for the forms that rows can have. Columns that can't be fed are left out.
    num_ranks : int
        How many ranks there are.
    directory
        Made when missing.

    Returns
    -------
    dict
        Rows per rank, by dataset.

    Raises
    ------
    InvalidArgument
        For names or data that can't be used.
    """
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be at least 1, got {num_ranks}.")
    tables = {}
    for name, rows in data.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgument(
                f"a dataset's name must be an identifier like 'train', got {name!r}."
            )
        tables[name], _ = feedable(rows, name)
    counts: dict[str, tuple[int, ...]] = {}
    for name, table in tables.items():
        ends = [table.num_rows * rank // num_ranks for rank in range(num_ranks + 1)]
        counts[name] = tuple(b - a for a, b in itertools.pairwise(ends))
        for rank, rows in enumerate(counts[name]):
            path = directory / f"rank-{rank}" / f"{name}.arrow"
            path.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as file:
                file.write_table(table.slice(ends[rank], rows), max_chunksize=_ROWS_PER_BATCH)
    return counts


def read(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file that `partition` wrote, mapped."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        for i in range(file.num_record_batches):
            yield file.get_batch(i)


def feedable(rows: Any, dataset: str = "data") -> tuple[pa.Table, dict[str, str]]:
    """Turn rows into an Arrow table of the columns that can be fed; say why others can't.

    Raises
    ------
    InvalidArgument
        When no column remains, or as `to_table`.
    """
    reasons: dict[str, str] = {}
    table = to_table(rows, dataset, reasons)
    times = Counter(table.column_names)
    for name in times:
        where = f"column {name!r} of dataset {dataset!r}"
        if times[name] > 1:
            reasons[name] = f"{where} is there {times[name]} times. {_RENAME}"
        elif (reason := reason_against(table.schema.field(name).type, where)) is not None:
            reasons[name] = reason
    fed = [name for name in times if name not in reasons]
    if reasons and (not fed or isinstance(rows, tuple)):  # who gives (x, y) wants both
        raise SchemaError(" ".join(reasons.values()))
    return (table.select(fed) if reasons else table), reasons


def to_table(rows: Any, dataset: str = "data", left_out: dict[str, str] | None = None) -> pa.Table:
    """Turn rows into an Arrow table.

    Parameters
    ----------
    rows
        A pyarrow Table, a pandas DataFrame (its index is left out), a dict of column to numpy
        array, one array (its column is ``x``), or a tuple of two or three arrays (``x``, ``y``,
        ``sample_weight``). The first axis of an array counts the rows; further ones make arrays of
        fixed shape. NaN stays NaN.
    dataset
        Its name, for errors.
    left_out
        Where it is given, columns that Arrow doesn't know how to hold are noted there with the
        reason, instead of being refused.
    """
    if isinstance(rows, pa.Table):
        return rows
    is_frame = hasattr(rows, "columns")
    columns: dict[str, pa.Array] = {}
    for name, values in _columns(rows, dataset).items():
        if not isinstance(name, str):
            raise InvalidArgument(f"dataset {dataset!r}: a column's name must be text: {name!r}.")
        where = f"column {name!r} of dataset {dataset!r}"
        try:
            columns[name] = _column(values, where, is_frame=is_frame)
        except _NoColumnError as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}: {rows}" for name, rows in lengths.items())
        raise InvalidArgument(f"dataset {dataset!r} has columns of different length: {listed}.")
    return pa.table(columns)


class _NoColumnError(SchemaError):
    """Values that can't become a column."""


def _columns(rows: Any, dataset: str) -> Mapping[Any, Any]:
    if isinstance(rows, Mapping) and rows:
        return rows
    if hasattr(rows, "columns") and hasattr(rows, "iloc"):
        return {column: rows[column] for column in rows.columns}
    if isinstance(rows, tuple):
        if not 1 < len(rows) <= len(_TUPLE_COLUMNS):
            raise InvalidArgument(
                f"dataset {dataset!r}: a tuple must be (x, y) or (x, y, sample_weight), this one "
                f"has {len(rows)} items. Use a dict of column to array."
            )
        return dict(zip(_TUPLE_COLUMNS, rows, strict=False))
    if hasattr(rows, "__array__"):
        return {"x": rows}
    raise InvalidArgument(
        f"dataset {dataset!r} is a {type(rows).__name__}; it can be a numpy array, a tuple "
        f"(x, y), a dict of column to array, a pandas DataFrame or a pyarrow Table."
    )


def _column(values: Any, where: str, *, is_frame: bool = False) -> pa.Array:
    if is_frame and values.ndim > 1:
        raise _NoColumnError(f"{where} is there {len(values.columns)} times. {_RENAME}")
    dtype = getattr(values, "dtype", None)
    try:
        if dtype is not None and not isinstance(dtype, np.dtype):  # pandas' own types
            return _one(pa.array(values))
        array = np.asarray(values)
        if array.ndim == 0:
            raise InvalidArgument(f"{where} is a single value, not one per row: {values!r}.")
        if array.dtype == object and array.ndim == 1:
            return _one(pa.array(array, from_pandas=True))
        column = pa.array(np.ascontiguousarray(array).reshape(-1), from_pandas=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _NoColumnError(f"{where} can't become a column: {error}") from error
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return column
