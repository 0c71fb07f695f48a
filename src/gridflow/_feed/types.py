"""The mapping of Spark types, Arrow types and tensors, in one table.

To support another Spark type, add a line here. In Spark's JVM each type is written by a class of
``io.gridflow.feed``: in bulk, or by ``Others``, which leaves it to Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from gridflow.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS", "Kind", "is_list", "is_text", "leaf_type", "refusal", "spark_refusal", "stored"]

_OTHERS: Final = "Leave it out, or convert it to numbers, strings or arrays of one length."


class Kind(NamedTuple):
    """Values of one kind: a column of them, or the items of its arrays.

    `spark`: Spark types.
    `is_arrow`: Whether an Arrow type belongs to this kind.
    `stored`: Converts an array without nulls to its stored form; None if there is no tensor for it.
    `tensor`: What TensorFlow gets.
    `java`: The Java class that writes them.
    `hint`: What to do if there is no tensor, or none for some values.
    """

    spark: tuple[str, ...]
    is_arrow: Callable[[pa.DataType], bool]
    stored: Callable[[pa.Array], pa.Array] | None = None
    tensor: str = ""
    java: str = "Others"
    hint: str = _OTHERS


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is an Arrow list that can become a tensor."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text or bytes."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the innermost item type of arrays."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def stored(array: pa.Array, where: object) -> pa.Array:
    """Return numbers or texts without nulls in stored form, by reference if possible.

    Raises `SchemaError`: They can't become a tensor, or not without a loss; ``where`` names them.
    """
    known = next((each for each in KINDS if each.is_arrow(array.type)), None)
    if known is None or known.stored is None:
        raise SchemaError(refusal(where, str(array.type), known))
    try:
        return known.stored(array)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"{where} can't become a tensor: {error}. {known.hint}") from error


def spark_refusal(name: str, shown: str, where: object) -> str | None:
    """Return why a Spark type, given by its class, can't become a tensor; None if it can."""
    known = next((each for each in KINDS if name in each.spark), None)
    return None if known is not None and known.stored is not None else refusal(where, shown, known)


def refusal(where: object, shown: str, kind: Kind | None) -> str:
    """Return the error for a type that can't become a tensor."""
    hint = _OTHERS if kind is None else kind.hint
    return f"{where} has the type {shown}, which can't become a tensor. {hint}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _never(kind: pa.DataType) -> bool:
    del kind
    return False


def _same(array: pa.Array) -> pa.Array:
    return array


def _bytes(array: pa.Array) -> pa.Array:
    return array.cast(pa.binary())


def _zeros_and_ones(array: pa.Array) -> pa.Array:
    return array.cast(pa.uint8())


def _days(array: pa.Array) -> pa.Array:
    return array.cast(pa.date32()).view(pa.int32())


def _microseconds(array: pa.Array) -> pa.Array:
    # The time zone only affects how an instant is printed. Nothing is cut off: Spark refuses that.
    return array.cast(pa.timestamp("us", array.type.tz)).view(pa.int64())


def _nearest(array: pa.Array) -> pa.Array:
    # Goes through text, because Arrow's own cast doesn't round to the nearest number.
    return array.cast(pa.string()).cast(pa.float64())


_LONG: Final = "Cast it to long, for example to its seconds."
_ROUND: Final = "Round it, as by pandas' .dt.floor('us'), or convert it to integers."
_NUMBERS: Final = ("ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType")
_TEXTS: Final = ("StringType", "CharType", "VarcharType", "BinaryType")
_MOMENTS: Final = ("TimestampType", "TimestampNTZType")

KINDS: Final = (
    Kind(_NUMBERS, _is_number, _same, "the same number", "Numbers"),
    Kind(_TEXTS, is_text, _same, "string", "Texts"),
    Kind((), pa.types.is_fixed_size_binary, _bytes, "string"),
    Kind(("BooleanType",), pa.types.is_boolean, _zeros_and_ones, "bool", "Booleans"),
    Kind(("DateType",), pa.types.is_date, _days, "int32, days since 1970", "Numbers"),
    Kind(_MOMENTS, pa.types.is_timestamp, _microseconds, "int64, µs since 1970", "Numbers", _ROUND),
    Kind(("DecimalType",), pa.types.is_decimal, _nearest, "float64"),
    # A struct's fields are columns, but not those of structs in arrays.
    Kind(
        ("StructType",),
        pa.types.is_struct,
        hint="Convert arrays of structs to arrays of their fields: transform(c, x -> x.a).",
    ),
    Kind(("MapType",), pa.types.is_map, hint="Choose its keys: columns={'name': Keys('a', 'b')}."),
    Kind(("VariantType",), _never, hint="Extract what you need with variant_get."),
    Kind(("NullType",), pa.types.is_null, hint="It contains only nulls: leave it out, or cast it."),
    Kind(("TimeType",), pa.types.is_time, hint=_LONG),
    Kind(("DayTimeIntervalType",), pa.types.is_duration, hint=_LONG),
    Kind(("YearMonthIntervalType",), _never, hint="Cast it to int, for example to its months."),
    Kind(
        ("CalendarIntervalType",),
        pa.types.is_interval,
        hint="Convert it to a number, for example of days.",
    ),
)
