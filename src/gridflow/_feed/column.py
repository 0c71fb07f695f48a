"""One column of a batch: its type, its null rows, and its form in the spool.

The common case (no nulls, arrays of equal length) copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridflow._feed.types import is_list, leaf_type, stored
from gridflow.errors import DataError, SchemaError

__all__ = [
    "ColumnPlace",
    "filled",
    "null_rows",
    "offsets_of",
    "ragged",
    "reason_against",
    "shaped",
    "storage",
]


@dataclass(frozen=True)
class ColumnPlace:
    """The location for error messages, and the type in earlier batches."""

    dataset: str
    column: str
    field: pa.Field | None

    @classmethod
    def of(cls, dataset: str, column: str, expected: pa.Schema | None) -> ColumnPlace:
        """Return the place of a column; ``expected`` is the schema of earlier batches."""
        return cls(dataset, column, None if expected is None else _field(expected, column))

    @property
    def expected_type(self) -> pa.DataType | None:
        """The type in earlier batches, or None."""
        return None if self.field is None else self.field.type

    def __str__(self) -> str:
        return f"column {self.column!r} of dataset {self.dataset!r}"


def _field(schema: pa.Schema, name: str) -> pa.Field:
    index = schema.get_field_index(name)
    if index < 0:
        raise DataError(
            f"a batch has the column {name!r}, but earlier ones had {', '.join(schema.names)}: all "
            "batches of a dataset need the same columns."
        )
    return schema.field(index)


def reason_against(kind: pa.DataType, where: str) -> str | None:
    """Return why a column can never become a tensor; None if it can.

    `kind`: The column's type.
    `where`: What to call it.
    """
    if pa.types.is_struct(kind):  # its fields are columns
        reasons = [reason_against(field.type, f"{where}, field {field.name!r},") for field in kind]
        return None if not reasons or None in reasons else reasons[0]
    leaf = leaf_type(kind)
    while isinstance(leaf, pa.BaseExtensionType):
        leaf = leaf_type(leaf.storage_type)
    try:
        stored(storage(pa.array([], leaf)), where)
    except SchemaError as error:
        return str(error)
    return None


def storage(array: pa.Array) -> pa.Array:
    """Unwrap dictionaries, extension types and views, which Arrow can't filter."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    plain = _without_views(array.type)
    return array if plain == array.type else array.cast(plain)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if not is_list(kind):
        return kind
    field = kind.value_field.with_type(_without_views(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(field, kind.list_size)
    return pa.large_list(field) if pa.types.is_large_list(kind) else pa.list_(field)


def offsets_of(array: pa.Array) -> np.ndarray:
    """Return where each row's items start in ``array.values``, and where the last row ends."""
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        rows = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64)
        return rows * int(width)
    if len(array) == 0:
        return np.zeros(1, np.int64)
    offsets: np.ndarray = array.offsets.to_numpy()
    return offsets.astype(np.int64, copy=False)


def null_rows(array: pa.Array) -> np.ndarray | None:
    """Return which rows contain a null at any depth, or None if none does."""
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if is_list(array.type) and len(array):
        offsets = offsets_of(array)
        items = null_rows(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        if items is not None:
            before = np.concatenate([[0], np.cumsum(items)])
            ends = offsets - offsets[0]
            inside = before[ends[1:]] > before[ends[:-1]]
            if null is not None:  # values under a null row are undefined
                inside &= ~null
            if inside.any():
                null = inside if null is None else null | inside
    return null


def filled(
    array: pa.Array, value: Any, where: ColumnPlace, expected: pa.DataType | None
) -> pa.Array:
    """Replace nulls at any depth with ``value``."""
    if not is_list(array.type):
        try:
            scalar = pa.scalar(_exact(value, array.type), type=array.type)
        except (pa.ArrowInvalid, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"the value {value!r} for nulls in {where} doesn't fit its type {array.type}: "
                f"{error}"
            ) from error
        return pc.fill_null(array, scalar)
    offsets = offsets_of(array)
    null = array.is_null().to_numpy(zero_copy_only=False)
    widths = np.diff(offsets)
    width = _width(widths[~null], where, expected)
    if width is None and isinstance(value, (list, tuple, np.ndarray)):
        width = len(value)
    if width is None:
        raise DataError(
            f"all rows of a batch are null in {where}, before any row has shown the length of its "
            "arrays, so they can't be filled. Give the value for nulls as a whole array, or fill "
            "nulls in the DataFrame."
        )
    inner = expected.value_type if expected is not None and is_list(expected) else None
    items = array.values
    if items.null_count or is_list(items.type):
        items = filled(items, value, where, inner)
    if not null.any():
        return pa.FixedSizeListArray.from_arrays(
            items.slice(offsets[0], offsets[-1] - offsets[0]), width
        )
    spare = _filled_row(value, width, items.type, where)
    # Null rows take their items from a spare row at the end.
    starts = np.where(null, len(items), offsets[:-1])
    index = (starts[:, None] + np.arange(width)).ravel()
    return pa.FixedSizeListArray.from_arrays(
        pa.concat_arrays([items, spare]).take(pa.array(index)), width
    )


def _exact(value: Any, kind: pa.DataType) -> Any:
    """Return a float as the decimal that is written like it: Arrow takes no other for decimals."""
    is_float = pa.types.is_decimal(kind) and isinstance(value, float)
    return Decimal(str(value)) if is_float else value


def _filled_row(value: Any, width: int, kind: pa.DataType, where: ColumnPlace) -> pa.Array:
    """Return ``width`` items for a null row."""

    def repeated(value: Any, kind: pa.DataType) -> Any:
        if is_list(kind) and not isinstance(value, (list, tuple, np.ndarray)):
            return [repeated(value, kind.value_type)] * kind.list_size
        return _exact(value, kind)

    given = list(value) if isinstance(value, (list, tuple, np.ndarray)) else None
    try:
        if given is not None and len(given) != width:
            raise DataError(
                f"the value for nulls in {where} has {len(given)} items, but its arrays have "
                f"{width}."
            )
        items = [value] * width if given is None else given
        return pa.array([repeated(item, kind) for item in items], type=kind)
    except (pa.ArrowInvalid, OverflowError, TypeError) as error:
        raise DataError(f"the value {value!r} for nulls in {where} isn't valid: {error}") from error


def shaped(column: pa.Array, where: ColumnPlace) -> pa.Array:
    """Convert a column without nulls to its form in the spool, as in earlier batches."""
    if len(column) == 0 and where.field is not None:  # all rows were dropped, whatever they were
        return pa.array([], where.expected_type)
    array = _fixed(column, where, where.expected_type)
    if where.field is not None and not array.type.equals(where.expected_type):
        raise DataError(
            f"{where} was {where.expected_type} in earlier batches and is now {array.type}: all "
            "batches need one type and shape."
        )
    return array


def ragged(column: pa.Array, where: ColumnPlace) -> pa.Array:
    """Convert arrays of any length, without nulls, to their form in the spool."""
    offsets = offsets_of(column)
    values = column.values if len(column) else column.values.slice(0, 0)
    items = stored(values.slice(offsets[0], offsets[-1] - offsets[0]), where)
    array = pa.LargeListArray.from_arrays(pa.array(offsets - offsets[0]), items)
    if where.field is not None and not array.type.equals(where.expected_type):
        raise DataError(
            f"{where} was {where.expected_type} in earlier batches and is now {array.type}: all "
            "batches need one type."
        )
    return array


def _width(widths: np.ndarray, where: ColumnPlace, expected: pa.DataType | None) -> int | None:
    """Return the common length of all arrays of a column, or None if unknown."""
    known = None
    if expected is not None and pa.types.is_fixed_size_list(expected):
        known = int(expected.list_size)
    elif len(widths):
        known = int(widths[0])
    if known is not None and len(widths) and (other := widths[widths != known]).size:
        raise DataError(
            f"{where} has arrays of {known} and of {int(other[0])} items. All rows need the same "
            f"length: use columns={{{where.column!r}: Padded(length)}}, or Ragged()."
        )
    if known == 0:
        raise DataError(
            f"{where} has only empty arrays in a batch, which can't become a tensor. Leave it out, "
            f"or use columns={{{where.column!r}: Padded(length)}}, or Ragged()."
        )
    return known


def _fixed(array: pa.Array, where: ColumnPlace, expected: pa.DataType | None) -> pa.Array:
    """Convert an array without nulls to its form in the spool, by reference if possible."""
    if not is_list(array.type):
        return stored(array, where)
    inner = expected.value_type if expected is not None and is_list(expected) else None
    offsets = offsets_of(array)
    if pa.types.is_fixed_size_list(array.type):
        # The type has the length even if there is no row.
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
