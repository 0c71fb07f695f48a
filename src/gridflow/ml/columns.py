"""Converts columns to a model's inputs, and its outputs to columns, with Arrow and numpy.

Input numbers aren't copied if they already have the model's type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gridflow._feed.column import ColumnPlace, null_rows, reason_against, shaped, storage
from gridflow._feed.types import is_list, is_text
from gridflow.errors import DataError, InvalidArgument, SchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

STRING: Final = "string"
#: Tensor types that Arrow or Spark doesn't support, with their replacements.
_SMALL_FLOATS: Final = {"bfloat16": "float32", "float16": "float32"}
_STAND_INS: Final = {**_SMALL_FLOATS, "uint64": "int64"}
#: Spark column types by numpy's names of tensor types.
_SPARK_TYPES: Final = {
    "float32": "float",
    "float64": "double",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "bool": "boolean",
    STRING: "string",
}
#: The fields of a Spark ML vector in Arrow.
_VECTOR: Final = ("type", "size", "indices", "values")
_DENSE: Final = 1


@dataclass(frozen=True)
class Slot:
    """An input or output of a model.

    Attributes
    ----------
    shape : tuple of int or None, or None
        The shape of one row; sizes that aren't fixed are None, and so is an unknown shape.
    dtype : str or None
        numpy's name, or ``"string"``; None: any type.
    """

    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None

    @classmethod
    def of_batch(cls, shape: Sequence[int | None] | None, dtype: str | None = None) -> Slot:
        """Return the slot of a tensor whose first axis is the rows."""
        row = None if shape is None else tuple(None if n is None else int(n) for n in shape[1:])
        return cls(row, dtype)

    @property
    def stored(self) -> str | None:
        """The name of a numpy type."""
        return _STAND_INS.get(self.dtype, self.dtype) if self.dtype else None

    @property
    def is_vector(self) -> bool:
        """Whether a row is a vector of numbers."""
        return self.shape is not None and len(self.shape) == 1 and self.dtype != STRING

    @property
    def spark_type(self) -> str:
        """The type of the Spark column; float if unknown.

        Raises
        ------
        InvalidArgument
            There is no such type.
        """
        stored = self.stored or "float32"
        if stored not in _SPARK_TYPES:
            raise InvalidArgument(
                f"a tensor of type {self.dtype} can't be a column; let the model cast it, or "
                "choose other outputs with outputs=."
            )
        depth = 0 if self.shape in (None, (), (1,)) else len(self.shape or ())
        return "array<" * depth + _SPARK_TYPES[stored] + ">" * depth

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape or ())
        return f"({sizes})"


def is_null(columns: Sequence[pa.Array]) -> np.ndarray | None:
    """Return which rows have a null in any column, at any depth; None if there is none."""
    found: np.ndarray | None = None
    for column in columns:
        null = null_rows(storage(column))
        if null is not None:
            found = null if found is None else found | null
    return found


def to_input(column: pa.Array, slot: Slot, name: str) -> np.ndarray:
    """Convert a column to a model input, with the rows as first axis.

    A flat array gets the shape of the input. Nulls become NaN in plain numbers for a floating-point
    input.

    Raises
    ------
    SchemaError
        The column's type doesn't fit the input.
    DataError
        Arrays have different lengths or another shape than the input, or there are nulls.
    """
    where = f"the column for the model's input {name!r}"
    column = storage(column)
    if _is_vector(column.type):
        column = _dense(column, where)
    if pa.types.is_struct(column.type):
        raise SchemaError(f"{where} has the type {column.type}: give one of its fields, 'place.x'.")
    reason = reason_against(column.type, where)
    if reason is not None:
        raise SchemaError(reason)
    return _fitted(_tensor(column, slot, where), slot, where)


def decoded(values: Any, slot: Slot, name: str) -> np.ndarray:
    """Return what a function of batches made of columns in the form of an input.

    Raises
    ------
    SchemaError, DataError
        Its type, or its shape, doesn't fit the input.
    """
    where = f"what map= returned for the model's input {name!r}"
    return _fitted(np.asarray(values), slot, where)


def _fitted(values: np.ndarray, slot: Slot, where: str) -> np.ndarray:
    return _as_shape(_as_type(values, slot, where), slot, where)


def padded(array: np.ndarray, most: int) -> np.ndarray:
    """Pad the rows to a power of two by repeating the last one: fewer sizes to compile."""
    more = min(1 << (len(array) - 1).bit_length(), most) - len(array)
    return np.concatenate([array, np.repeat(array[-1:], more, axis=0)]) if more else array


def stacked(columns: Sequence[pa.Array], slot: Slot, name: str) -> np.ndarray:
    """Stack columns of numbers to an input of shape (rows, columns)."""
    kind = slot.stored or "float32"
    table = np.empty((len(columns[0]), len(columns)), kind)
    for place, column in enumerate(columns):
        values = to_input(column, Slot((), kind), name)
        if values.ndim > 1:
            raise SchemaError(
                f"the model's input {name!r} is given {len(columns)} columns, one of which holds "
                "arrays. Give columns of numbers, or one column of arrays."
            )
        table[:, place] = values
    return table


def _is_vector(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and tuple(field.name for field in kind) == _VECTOR


def _dense(column: pa.StructArray, where: str) -> pa.Array:
    """Return Spark ML vectors as arrays."""
    if column.null_count:
        raise DataError(f"{where} contains nulls; drop those rows first.")
    kinds, sizes, indices, values = (column.field(i) for i in range(len(_VECTOR)))
    lengths = pc.min_max(pc.coalesce(sizes, pc.list_value_length(values)))
    least, width = lengths["min"].as_py(), lengths["max"].as_py()
    if least != width:
        raise DataError(
            f"{where} has vectors of size {least} and of size {width}. All rows need the same size."
        )
    if pc.min_max(kinds)["min"].as_py() == _DENSE:
        return values
    table = np.zeros((len(column), width))
    for row, (kind, place, value) in enumerate(
        zip(kinds.to_numpy(), indices.to_pylist(), values.to_pylist(), strict=True)
    ):
        table[row, slice(None) if kind == _DENSE else place] = value
    return pa.FixedSizeListArray.from_arrays(pa.array(table.ravel()), width)


def _tensor(column: pa.Array, slot: Slot, where: str) -> np.ndarray:
    """Return a column as an array; it has no nulls, or NaN for nulls in numbers."""
    if null_rows(column) is not None:
        takes_nan = slot.stored is None or slot.stored.startswith("float")
        is_plain = not (is_list(column.type) or is_text(column.type))
        if not is_plain or pa.types.is_temporal(column.type) or not takes_nan:
            raise DataError(
                f"{where} contains nulls, which are allowed only in plain numbers for a "
                "floating-point input (where they become NaN). Fill them first, "
                f"df.fillna({{'column': value}}), with the value used in training, drop their "
                "rows, or use nulls='null'."
            )
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    shape = [len(column)]
    while is_list(column.type):
        widths = pc.min_max(pc.list_value_length(column))
        least, most = widths["min"].as_py(), widths["max"].as_py()
        if least != most:
            raise DataError(
                f"{where} has arrays of {least} and of {most} items. All rows need the same "
                "length: pad or cut them first (Spark: slice, concat with array_repeat)."
            )
        shape.append(int(most or 0))
        column = column.flatten()
    if not pa.types.is_boolean(column.type):  # numpy's booleans are bytes, Arrow's are bits
        column = shaped(column, ColumnPlace("", where, None))
    return np.asarray(column.to_numpy(zero_copy_only=False)).reshape(shape)


def _as_type(values: np.ndarray, slot: Slot, where: str) -> np.ndarray:
    wanted = slot.stored
    if wanted is None or (wanted == STRING and values.dtype == object):
        return values
    if wanted == STRING or values.dtype == object:
        has = "text or bytes" if values.dtype == object else f"numbers ({values.dtype})"
        raise SchemaError(
            f"{where} holds {has}, and the input is of {slot.dtype}. Cast it first; bytes are "
            "decoded by map=, such as gridflow.data.image_decoder or array_decoder."
        )
    if values.dtype != wanted:
        check_range(values, np.dtype(wanted), f"{where} holds", f"its type {wanted}")
    return values.astype(wanted, copy=False)


def _as_shape(values: np.ndarray, slot: Slot, where: str) -> np.ndarray:
    if slot.shape is None:
        return values
    rows, given = len(values), values.shape[1:]
    if None not in slot.shape and math.prod(given) == math.prod(size or 0 for size in slot.shape):
        return values.reshape(rows, *[size or 0 for size in slot.shape])
    if len(given) == len(slot.shape) - 1 and slot.shape[-1] in (None, 1):
        values = values[..., np.newaxis]
    fits = len(values.shape) - 1 == len(slot.shape) and all(
        size in (None, real) for size, real in zip(slot.shape, values.shape[1:], strict=True)
    )
    if not fits:
        raise DataError(f"{where} has rows of the shape {given}, and the input takes {slot}.")
    return values


def to_column(values: Any, kind: pa.DataType, name: str) -> pa.Array:
    """Return a model's output as a column of a type.

    Numbers are cast as Spark's ANSI mode does: fractions of whole numbers are cut off.

    Raises
    ------
    DataError
        The output's rows have another shape than the type, or a value is beyond its range.
    """
    array = _as_array(values)
    if not array.ndim:
        raise DataError(f"the output {name!r} must have one value for each row; got {values!r}.")
    if array.dtype.name in _SMALL_FLOATS:
        array = array.astype(_SMALL_FLOATS[array.dtype.name])
    depth, leaf = 0, kind
    while is_list(leaf):
        depth, leaf = depth + 1, leaf.value_type
    rows = len(array)
    if depth == 0 and math.prod(array.shape[1:]) == 1:
        array = array.reshape(rows)
    if depth == 1 and array.ndim == 1 and array.dtype != object:
        array = array[:, np.newaxis]
    if array.ndim == 1 and array.dtype == object and depth:  # rows of different length
        return _ragged(array, kind, name)
    if array.ndim - 1 != depth:
        raise DataError(
            f"the output {name!r} has rows of the shape {array.shape[1:]}, which are no {kind}. "
            "Say with outputs= what they are: array<float> for one axis, array<array<float>> for "
            "two."
        )
    flat = _flat(array, leaf, name)
    for size in reversed(array.shape[1:]):
        count = len(flat) // size if size else rows
        offsets = pa.array(np.arange(count + 1, dtype=np.int64) * size, pa.int32())
        flat = pa.ListArray.from_arrays(offsets, flat)
    return flat if flat.type == kind else flat.cast(kind)


def _as_array(values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # a list of rows of different length
        array = np.empty(len(values), object)
        for place, row in enumerate(values):
            array[place] = row
        return array


def _ragged(array: np.ndarray, kind: pa.DataType, name: str) -> pa.Array:
    """Return rows that are lists of different length, or None."""
    none = [row is None for row in array]
    rows = [
        to_column(() if row is None else np.asarray(row), kind.value_type, name) for row in array
    ]
    offsets = np.cumsum([0, *map(len, rows)])
    flat = pa.concat_arrays(rows) if rows else pa.array([], kind.value_type)
    found = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), flat, mask=pa.array(none) if any(none) else None
    )
    return found if found.type == kind else found.cast(kind)


def _flat(array: np.ndarray, leaf: pa.DataType, name: str) -> pa.Array:
    values = array.reshape(-1)
    try:
        if values.dtype.kind in "OSU":
            items = values.tolist()
            is_bytes = any(isinstance(item, bytes) for item in items)
            found = pa.array(items, pa.binary() if is_bytes else None)
        else:
            found = pa.array(values)
        if found.type == leaf:
            return found
        if pa.types.is_floating(found.type) and (
            pa.types.is_integer(leaf) or pa.types.is_boolean(leaf)
        ):
            present = found.drop_null().to_numpy() if found.null_count else found.to_numpy()
            dtype = np.dtype(leaf.to_pandas_dtype())
            check_range(present, dtype, f"the output {name!r} has", _SPARK_TYPES[dtype.name])
        return found.cast(options=_cast_options(found.type, leaf))
    except (pa.ArrowException, OverflowError) as error:
        hint = ""
        if values.dtype.kind in "OSU" and is_text(leaf):
            hint = f" Bytes that are no text are of type binary: outputs={{{name!r}: 'binary'}}."
        elif values.dtype.kind in "iu" and pa.types.is_integer(leaf):
            dtype = np.dtype(leaf.to_pandas_dtype())
            check_range(values, dtype, f"the output {name!r} has", _SPARK_TYPES[dtype.name])
        raise DataError(f"the output {name!r} can't be {leaf}: {error}.{hint}") from error


def _cast_options(given: pa.DataType, kind: pa.DataType) -> pc.CastOptions:
    """Return how Spark casts in ANSI mode: digits may be lost, never the size of a number.

    Numbers inside structs, whose range isn't looked at, may lose nothing.
    """
    may_lose = pa.types.is_primitive(given)
    return pc.CastOptions(kind, allow_float_truncate=may_lose, allow_time_truncate=may_lose)


def check_range(values: np.ndarray, dtype: np.dtype[Any], has: str, kind: str) -> None:
    """Refuse numbers beyond a type of whole numbers or booleans, to which they will be cast.

    Parameters
    ----------
    values : numpy.ndarray
    dtype : numpy.dtype
        The type; every number can be cast to one of other types.
    has, kind : str
        For the message: what has the values, and what the type is called there.

    Raises
    ------
    DataError
        With the first such number.
    """
    if dtype.kind not in "biu" or values.dtype.kind not in "iuf" or not values.size:
        return
    bounds = ""
    if dtype.kind == "b":
        wrong = np.isnan(values)
    else:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        bounds = f" ({least} to {most})"
        if values.dtype.kind == "f":  # compared with powers of two, which floats hold exactly
            whole = np.trunc(values)
            wrong = ~((whole >= float(least)) & (whole < float(most + 1)))
        elif least <= int(values.min()) and int(values.max()) <= most:
            return
        else:
            numbers = values.astype(object)  # which know no bounds
            wrong = ((numbers < least) | (numbers > most)).astype(bool)
    if wrong.any():
        raise DataError(
            f"{has} the value {values[wrong][0].item()}, which doesn't fit {kind}{bounds}. Choose "
            "a wider type, or clip such values first."
        )


def scattered(column: pa.Array, null: np.ndarray) -> pa.Array:
    """Put the rows of a column back to their places, with nulls between them."""
    places = np.cumsum(~null) - 1
    return column.take(pa.array(places, mask=null))
