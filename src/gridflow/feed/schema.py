"""From Arrow record batches as they arrive to columns that are tensors: fixed shape, no nulls.

Runs in the agent, on every batch, so the common case (no nulls, equal lengths) copies nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridflow.errors import DataError, InvalidArgument, SchemaError, did_you_mean

__all__ = [
    "BOOLEAN",
    "FeedOptions",
    "Findings",
    "TensorSpec",
    "normalise",
    "reason_against",
    "tensor_specs",
]

#: Metadata of a field whose bytes are 0 or 1 and mean False or True: Arrow's own booleans are
#: bits, which numpy can't map.
BOOLEAN: Final = {b"gridflow.type": b"bool"}
#: The element type (a numpy dtype, or "string" for text and bytes) and the shape of one row.
TensorSpec = tuple["np.dtype[Any] | Literal['string']", tuple[int | None, ...]]

_RULES = ("error", "drop")


@dataclass(frozen=True)
class FeedOptions:
    """How rows become tensors.

    Parameters
    ----------
    nulls : {"error", "drop"} or mapping of column to value, default "error"
        What a null, in a column or inside an array, means. ``"error"``: the column is left out,
        and to ask for it is an error that says so. ``"drop"``: a row with a null in any column
        that is fed is left out, and counted in the ledger. A mapping gives the value to put in
        place of nulls, by column; other columns are as with ``"error"``. NaN is a number, not a
        null, and stays.
    """

    nulls: Literal["error", "drop"] | Mapping[str, Any] = "error"

    def __post_init__(self) -> None:
        if isinstance(self.nulls, Mapping):
            for column, value in self.nulls.items():
                if value is None or not isinstance(column, str):
                    msg = f"nulls={{{column!r}: {value!r}}} must map a column's name to a value."
                    raise InvalidArgument(msg)
        elif self.nulls not in _RULES:
            raise InvalidArgument(
                f"nulls must be 'error', 'drop' or a mapping of column to value, got "
                f"{self.nulls!r}.{did_you_mean(str(self.nulls), _RULES)}"
            )

    def check_columns(self, columns: Collection[str]) -> None:
        """Refuse values for columns that are in no dataset.

        Raises
        ------
        InvalidArgument
            With the columns that there are.
        """
        fills = self.nulls if isinstance(self.nulls, Mapping) else {}
        for column in fills:
            if column not in columns:
                raise InvalidArgument(
                    f"nulls= has a value for {column!r}, which is no column of the data: "
                    f"{', '.join(columns) or 'there are none'}.{did_you_mean(column, columns)}"
                )


@dataclass
class Findings:
    """What was found of a dataset's columns while its rows came in.

    Attributes
    ----------
    left_out : dict
        Columns that can't be fed, and why.
    nulls : Counter
        Of the rows that were dropped: how many had a null, by column.
    """

    left_out: dict[str, str] = dataclass_field(default_factory=dict)
    nulls: Counter[str] = dataclass_field(default_factory=Counter)


def reason_against(kind: pa.DataType, where: str) -> str | None:
    """Return why a column can't be a tensor whatever its rows are; None when it can.

    Parameters
    ----------
    kind : pyarrow.DataType
        The column's.
    where : str
        What to call it.
    """
    leaf = _leaf(kind)
    while isinstance(leaf, pa.BaseExtensionType):
        leaf = _leaf(leaf.storage_type)
    if pa.types.is_dictionary(leaf):
        leaf = leaf.value_type
    try:
        _fixed_leaf(pa.array([], leaf), where)
    except SchemaError as error:
        return str(error)
    return None


def normalise(
    batch: pa.RecordBatch,
    dataset: str,
    options: FeedOptions,
    expected: pa.Schema | None = None,
    findings: Findings | None = None,
) -> tuple[pa.RecordBatch, int]:
    """Return the batch with fixed shapes and no nulls, and how many rows were dropped.

    Parameters
    ----------
    batch
        Rows as they arrived.
    dataset
        Its name, for errors.
    options
        The rule for nulls.
    expected
        The schema that an earlier batch of the dataset was given by this function; lengths of
        arrays and types must be the same in all.
    findings
        Where it is given, a column that can't be fed is left out from this batch on, and noted
        there with the reason, as long as another one remains.

    Raises
    ------
    DataError
        For a null that no rule covers, or arrays that change their length.
    SchemaError
        For a type that can't be a tensor.
    """
    found = findings or Findings()
    columns = {
        name: _storage(column)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name not in found.left_out
    }

    def refuse(name: str, error: DataError | SchemaError) -> None:
        if findings is None or len(columns) == 1:
            raise error
        del columns[name]
        found.left_out[name] = str(error)

    fills = options.nulls if isinstance(options.nulls, Mapping) else {}
    drop: np.ndarray | None = None
    for name, column in list(columns.items()):
        null = _null_rows(column)
        if null is None:
            continue
        where = _where(dataset, name, expected)
        if name in fills:
            columns[name] = _filled(column, fills[name], where, where.expected_type)
        elif options.nulls == "drop":
            drop = null if drop is None else drop | null
            found.nulls[name] += int(null.sum())
        else:
            refuse(name, _nulls_error(where, null))
    dropped = 0
    if drop is not None:
        keep = pa.array(~drop)
        dropped = int(drop.sum())
        columns.update({name: column.filter(keep) for name, column in columns.items()})

    arrays, fields = [], []
    for name, column in list(columns.items()):
        try:
            array = _shaped(column, _where(dataset, name, expected))
        except (DataError, SchemaError) as error:
            refuse(name, error)
            continue
        # Rows that were lent, or came from another rank, have been here before.
        was_bool = (batch.schema.field(name).metadata or {}).items() >= BOOLEAN.items()
        is_bool = was_bool or pa.types.is_boolean(_leaf(column.type))
        fields.append(pa.field(name, array.type, metadata=BOOLEAN if is_bool else None))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), dropped


def _where(dataset: str, name: str, expected: pa.Schema | None) -> _Where:
    return _Where(dataset, name, None if expected is None else _field(expected, name))


def _nulls_error(where: _Where, null: np.ndarray) -> DataError:
    return DataError(
        f"{where} has nulls in {int(null.sum())} of {len(null)} rows of a batch. Fill them before, "
        f"or give nulls='drop', or nulls={{{where.column!r}: value}} to fill them here."
    )


def _shaped(column: pa.Array, where: _Where) -> pa.Array:
    """Give a column without nulls its form in the spool, the same as in earlier batches."""
    array = _fixed(column, where, where.expected_type)
    if where.field is not None and not (len(array) == 0 or array.type.equals(where.expected_type)):
        raise DataError(
            f"{where} was {where.expected_type} in earlier batches and is {array.type} now: all "
            "batches need one type and shape."
        )
    return array


def tensor_specs(schema: pa.Schema) -> dict[str, TensorSpec]:
    """Return element type and shape of one row, by column, of a schema that `normalise` made.

    The length of an array is None where no row has told it yet.
    """
    specs: dict[str, TensorSpec] = {}
    for field in schema:
        shape: list[int | None] = []
        kind = field.type
        while _is_list(kind):
            shape.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
            kind = kind.value_type
        if _is_text(kind):
            specs[field.name] = ("string", tuple(shape))
        elif field.metadata and field.metadata.get(b"gridflow.type") == b"bool":
            specs[field.name] = (np.dtype(np.bool_), tuple(shape))
        else:
            specs[field.name] = (np.dtype(kind.to_pandas_dtype()), tuple(shape))
    return specs


@dataclass(frozen=True)
class _Where:
    """The place that an error has to name, and what earlier batches looked like."""

    dataset: str
    column: str
    field: pa.Field | None

    @property
    def expected_type(self) -> pa.DataType | None:
        return None if self.field is None else self.field.type

    def __str__(self) -> str:
        return f"column {self.column!r} of dataset {self.dataset!r}"


def _field(schema: pa.Schema, name: str) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        raise DataError(
            f"a batch has the column {name!r}, earlier ones had {', '.join(schema.names)}: all "
            f"batches of a dataset need the same columns."
        )
    return schema.field(index)


def _storage(array: pa.Array) -> pa.Array:
    """Take off the wrappings: dictionaries and extension types."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _leaf(kind: pa.DataType) -> pa.DataType:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _offsets(array: pa.Array) -> np.ndarray:
    """Return where each row's items start in ``array.values``, and where the last one ends."""
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        rows = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return rows * int(width)
    if len(array) == 0:
        return np.zeros(1, np.int64)
    offsets: np.ndarray = array.offsets.to_numpy()
    return offsets.astype(np.int64, copy=False)


def _null_rows(array: pa.Array) -> np.ndarray | None:
    """Return which rows hold a null at any depth, or None when none does."""
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if _is_list(array.type) and len(array):
        offsets = _offsets(array)
        items = _null_rows(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        if items is not None:
            before = np.concatenate([[0], np.cumsum(items)])
            ends = offsets - offsets[0]
            inside = before[ends[1:]] > before[ends[:-1]]
            if null is not None:  # what lies under a null row means nothing
                inside &= ~null
            if inside.any():
                null = inside if null is None else null | inside
    return null


def _filled(array: pa.Array, value: Any, where: _Where, expected: pa.DataType | None) -> pa.Array:
    """Put ``value`` in the place of nulls at any depth."""
    if not _is_list(array.type):
        try:
            scalar = pa.scalar(value, type=array.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
            raise DataError(
                f"the value {value!r}, given for nulls in {where}, doesn't fit its type "
                f"{array.type}: {error}"
            ) from error
        return pc.fill_null(array, scalar)
    offsets = _offsets(array)
    null = array.is_null().to_numpy(zero_copy_only=False)
    widths = np.diff(offsets)
    width = _width(widths[~null], where, expected)
    if width is None:
        raise DataError(
            f"all rows of a batch are null in {where}, before any row told how long its arrays "
            f"are, so they can't be filled. Fill them in the DataFrame."
        )
    inner = expected.value_type if expected is not None and _is_list(expected) else None
    items = array.values
    if items.null_count or _is_list(items.type):
        items = _filled(items, value, where, inner)
    if not null.any():
        return pa.FixedSizeListArray.from_arrays(
            items.slice(offsets[0], offsets[-1] - offsets[0]), width
        )
    spare = _filled_row(value, width, items.type, where)
    # Null rows take their items from the spare row behind all others.
    starts = np.where(null, len(items), offsets[:-1])
    index = (starts[:, None] + np.arange(width)).ravel()
    return pa.FixedSizeListArray.from_arrays(
        pa.concat_arrays([items, spare]).take(pa.array(index)), width
    )


def _filled_row(value: Any, width: int, kind: pa.DataType, where: _Where) -> pa.Array:
    """Return ``width`` items for a row that was null itself."""

    def repeated(value: Any, kind: pa.DataType) -> Any:
        if _is_list(kind) and not isinstance(value, (list, tuple, np.ndarray)):
            return [repeated(value, kind.value_type)] * kind.list_size
        return value

    given = list(value) if isinstance(value, (list, tuple, np.ndarray)) else None
    try:
        if given is not None and len(given) != width:
            raise DataError(
                f"the value given for nulls in {where} has {len(given)} items, its arrays have "
                f"{width}."
            )
        return pa.array(given or [repeated(value, kind)] * width, type=kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise DataError(f"the value {value!r}, given for nulls in {where}: {error}") from error


def _width(widths: np.ndarray, where: _Where, expected: pa.DataType | None) -> int | None:
    """Return the one length that all arrays of a column have, None when nothing tells it."""
    known = None
    if expected is not None and pa.types.is_fixed_size_list(expected):
        known = int(expected.list_size)
    elif len(widths):
        known = int(widths[0])
    if known is not None and len(widths) and (other := widths[widths != known]).size:
        raise DataError(
            f"{where} has arrays of {known} and of {int(other[0])} items. All rows need the same "
            f"length: pad or cut them before (Spark: slice, concat with array_repeat)."
        )
    return known


def _fixed(array: pa.Array, where: _Where, expected: pa.DataType | None) -> pa.Array:
    """Give an array without nulls its form in the spool, by reference where possible."""
    if not _is_list(array.type):
        return _fixed_leaf(array, where)
    inner = expected.value_type if expected is not None and _is_list(expected) else None
    offsets = _offsets(array)
    if pa.types.is_fixed_size_list(array.type):
        # The type tells the length even when there is no row.
        width = _width(np.array([array.type.list_size]), where, expected)
    else:
        width = _width(np.diff(offsets), where, expected)
    values = array.values if len(array) else array.values.slice(0, 0)
    items = _fixed(values.slice(offsets[0], offsets[-1] - offsets[0]), where, inner)
    if width is None:
        return pa.ListArray.from_arrays(pa.array([0], pa.int32()), items)
    if not len(array):
        return pa.array([], pa.list_(items.type, width))
    return pa.FixedSizeListArray.from_arrays(items, width)


def _fixed_leaf(array: pa.Array, where: _Where | str) -> pa.Array:
    kind, types = array.type, pa.types
    if _is_text(kind) or types.is_integer(kind) or types.is_floating(kind):
        return array
    if types.is_date(kind):
        return array.cast(pa.date32()).view(pa.int32())
    if types.is_timestamp(kind):
        # Truncates nanoseconds; a time zone is only a way to print the same instant.
        return array.cast(pa.timestamp("us", kind.tz), safe=False).view(pa.int64())
    for applies, target in _CASTS:
        if applies(kind):
            return array.cast(target)
    hint = "Leave it out, or turn it into numbers, strings or arrays of one length."
    hint = next((hint for applies, hint in _HINTS if applies(kind)), hint)
    raise SchemaError(f"{where} has the type {kind}, which can't be a tensor. {hint}")


_CASTS: Final = (
    (pa.types.is_boolean, pa.uint8()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary_view, pa.binary()),
)
_HINTS: Final = (
    (pa.types.is_decimal, "Cast it to double or float."),
    (pa.types.is_null, "It holds nothing but nulls: leave it out, or cast it."),
    (pa.types.is_struct, "Select its fields as columns of their own."),
    (pa.types.is_duration, "Cast it to long."),
    (pa.types.is_time, "Cast it to long."),
)
