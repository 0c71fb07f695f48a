"""Data for plain local processes: arrays and tables, split among the ranks as Arrow files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from gridflow._feed.column import reason_against
from gridflow._feed.ingest.base import RankRows, RowSource, check_name
from gridflow._feed.types import is_list, leaf_type, stored
from gridflow.errors import InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator
    from pathlib import Path

__all__ = ["ArraySource", "FileRows", "feedable", "has_masks", "integer_lost_in", "to_table"]

_TUPLE_COLUMNS: Final = ("x", "y", "sample_weight")
_ROWS_PER_BATCH: Final = 10_000
_RENAME: Final = "Rename or drop all but one."
#: From here on, not every integer can be represented as float64.
_EXACT: Final = 2.0**53


@dataclass(frozen=True)
class FileRows(RankRows):
    """The rows of one rank, in a folder with a file for each dataset."""

    folder: Path
    datasets: tuple[str, ...]

    def batches(
        self,
        arriving: Iterable[pa.RecordBatch] = (),  # noqa: ARG002 (all lie in the files)
    ) -> Generator[tuple[str, pa.RecordBatch]]:
        """Yield the record batches of the files, mapped, with the name of their dataset."""
        for name in self.datasets:
            with pa.memory_map(str(self.folder / f"{name}.arrow")) as source:
                file = pa.ipc.open_file(source)
                for i in range(file.num_record_batches):
                    yield name, file.get_batch(i)


class ArraySource(RowSource):
    """Datasets in the driver's memory, for processes on the same machine.

    `data` (mapping of dataset name to rows): See `to_table` for the forms that rows can have.
        Columns that can't be fed are left out.
    Raises `InvalidArgument`, `SchemaError`: A name or the data can't be used.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._tables: dict[str, pa.Table] = {}
        self._left_out: dict[str, dict[str, str]] = {}
        for name, rows in data.items():
            check_name(name)
            self._tables[name], reasons = feedable(rows, name)
            if reasons:
                self._left_out[name] = reasons

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of all datasets, each once."""
        names = [
            column
            for name, table in self._tables.items()
            for column in (*table.schema.names, *self._left_out.get(name, ()))
        ]
        return tuple(dict.fromkeys(names))

    @property
    def left_out(self) -> dict[str, dict[str, str]]:
        """Columns that can't be fed, with the reason, by dataset."""
        return self._left_out

    def check(self, num_ranks: int) -> None:
        """Reject a dataset without rows, if there is a rank to feed."""
        for name, table in self._tables.items():
            if num_ranks and not table.num_rows:
                raise SchemaError(f"dataset {name!r} has no rows: there is nothing to feed.")

    def details(self) -> dict[str, str]:
        """Return the number of rows of each dataset."""
        return {f"rows of {name}": f"{table.num_rows:,}" for name, table in self._tables.items()}

    def deal(self, num_ranks: int, folder: Path, kept: Collection[str] = ()) -> list[FileRows]:
        """Write each rank's rows to a separate folder, and return their readers.

        Each rank gets consecutive rows; the numbers of rows differ by at most one. Maps are left
        out, except for the columns ``kept``, which the agents convert.
        """
        if num_ranks < 1:
            raise InvalidArgument(f"num_ranks must be at least 1, got {num_ranks}.")
        ranks = [
            FileRows(folder / f"rank-{rank}", tuple(self._tables)) for rank in range(num_ranks)
        ]
        for rows in ranks:
            rows.folder.mkdir(parents=True, exist_ok=True)
        for name, whole in self._tables.items():
            without = self._left_out.get(name, {}).keys() - set(kept)
            table = whole.drop_columns([c for c in whole.column_names if c in without])
            ends = [table.num_rows * rank // num_ranks for rank in range(num_ranks + 1)]
            for (begin, end), rows in zip(itertools.pairwise(ends), ranks, strict=True):
                path = rows.folder / f"{name}.arrow"
                with (
                    pa.OSFile(str(path), "wb") as sink,
                    pa.ipc.new_file(sink, table.schema) as file,
                ):
                    file.write_table(table.slice(begin, end - begin), max_chunksize=_ROWS_PER_BATCH)
        return ranks


def feedable(rows: Any, dataset: str = "data") -> tuple[pa.Table, dict[str, str]]:
    """Convert rows to an Arrow table of the columns that can be fed, with reasons for the others.

    Raises `InvalidArgument`: No column remains, or as in `to_table`.
    """
    reasons: dict[str, str] = {}
    table = to_table(rows, dataset, reasons)
    times = Counter(table.column_names)
    for name in times:
        where = f"column {name!r} of dataset {dataset!r}"
        if times[name] > 1:
            reasons[name] = f"{where} is there {times[name]} times. {_RENAME}"
        elif (reason := _reason_against(table.column(name), where)) is not None:
            reasons[name] = reason
    fed = [name for name in times if name not in reasons]
    if reasons and (not fed or isinstance(rows, tuple)):  # users who pass (x, y) need both
        raise SchemaError(" ".join(reasons.values()))
    # Chosen keys of a map can be fed, but which ones isn't known here.
    fed = [n for n in times if n in fed or (times[n] == 1 and _is_map(table.schema.field(n).type))]
    return (table.select(fed) if reasons else table), reasons


def _reason_against(column: pa.ChunkedArray, where: str) -> str | None:
    """Return why a column can't become a tensor: its type, or moments that are finer than it."""
    reason = reason_against(column.type, where)
    if reason is not None or not pa.types.is_timestamp(leaf_type(column.type)):
        return reason
    while is_list(column.type):
        column = pc.list_flatten(column)
    try:
        for chunk in column.chunks:
            stored(chunk, where)
    except SchemaError as error:
        return str(error)
    return None


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind))


def to_table(rows: Any, dataset: str = "data", left_out: dict[str, str] | None = None) -> pa.Table:
    """Convert rows to an Arrow table.

    `rows`: A pyarrow Table or RecordBatch, a pandas DataFrame (its index is left out), a dict of
        column to numpy array, one array (its column is ``x``), or a tuple of two or three arrays
        (``x``, ``y``, ``sample_weight``). The first axis of an array is the rows; further axes
        become arrays of fixed shape. NaN stays NaN; masked values become null.
    `dataset`: The dataset's name, for errors.
    `left_out`: If given, columns that Arrow can't represent are added to it with the reason,
        instead of raising an error.
    """
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
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
        raise InvalidArgument(f"dataset {dataset!r} has columns of different lengths: {listed}.")
    return pa.table(columns)


class UnknownKindError(InvalidArgument):
    """Rows of a type that can't be converted to a table."""


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
                f"dataset {dataset!r}: a tuple must be (x, y) or (x, y, sample_weight); this one "
                f"has {len(rows)} items. Use a dict of column to array."
            )
        return dict(zip(_TUPLE_COLUMNS, rows, strict=False))
    if hasattr(rows, "__array__"):
        return {"x": rows}
    raise UnknownKindError(
        f"dataset {dataset!r} is a {type(rows).__name__}; it must be a numpy array, a tuple (x, "
        "y), a dict of column to array, a pandas DataFrame, a pyarrow Table or RecordBatch."
    )


def _column(values: Any, where: str, *, is_frame: bool = False) -> pa.Array:
    if is_frame and values.ndim > 1:
        raise _NoColumnError(f"{where} is there {len(values.columns)} times. {_RENAME}")
    dtype = getattr(values, "dtype", None)
    try:
        if dtype is not None and not isinstance(dtype, np.dtype):  # pandas' own types
            return _one(pa.array(values))
        if dtype is None and has_masks(values):
            values = np.ma.stack(values)
        array = np.asarray(values)
        if array.ndim == 0:
            raise InvalidArgument(f"{where} is a single value instead of one per row: {values!r}.")
        if 0 in array.shape[1:]:
            raise _NoColumnError(
                f"{where} has arrays without values, of the shape {array.shape[1:]}. Leave it out."
            )
        mask = np.ma.getmask(values)  # masked values are nulls
        hidden = None if mask is np.ma.nomask else np.ascontiguousarray(mask)
        if array.dtype == object and array.ndim == 1:
            return _one(pa.array(array, from_pandas=True, mask=hidden))
        if dtype is None and (lossy := integer_lost_in(array, values)) is not None:
            raise _NoColumnError(f"{where}: {lossy}")
        column = pa.array(
            np.ascontiguousarray(array).reshape(-1),
            from_pandas=False,
            mask=None if hidden is None else hidden.reshape(-1),
        )
    except OverflowError as error:
        raise _NoColumnError(
            f"{where} has integers that don't fit into 64 bits. Make them floats or text."
        ) from error
    except (pa.ArrowException, ValueError, TypeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _NoColumnError(f"{where} can't become a column: {error}") from error
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def has_masks(values: Any) -> bool:
    """Return whether some values are masked arrays, whose masks numpy would lose."""
    is_list = isinstance(values, list | tuple)
    return is_list and any(isinstance(value, np.ma.MaskedArray) for value in values)


def integer_lost_in(array: np.ndarray, values: Any) -> str | None:
    """Return an error if numpy has rounded an integer among floats, or None.

    `array`: The result of numpy's conversion.
    `values`: Plain numbers, in lists of any depth.
    """
    if array.dtype != np.float64 or not (np.abs(array) >= _EXACT).any():
        return None
    for value in _leaves(values):
        if isinstance(value, int | np.integer) and int(float(value)) != int(value):
            return (
                f"the integer {value} would become the float {float(value):.0f}, because not all "
                "values are integers that fit into 64 bits. Make all of them integers or floats."
            )
    return None


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        elif isinstance(value, np.ndarray):
            yield from value.reshape(-1)
        else:
            yield value


def _one(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    return column
