"""``tf.train.Example`` and ``SequenceExample`` messages, read and written without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from gridflow.errors import DataError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    _Parsed = TypeVar("_Parsed")

#: The values of a feature: int64 or float32 in numpy, or a list of bytes; None without a kind.
Values: TypeAlias = "np.ndarray | list[bytes] | None"

_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_MAX_DEPTH: Final = 95
_MAX_LENGTH: Final = 2**31 - 1


class MalformedExample(DataError):
    """The bytes are no Example (or SequenceExample)."""


@dataclass
class Example:
    """The features of one record.

    Attributes
    ----------
    features
        Values by name; of a SequenceExample, those of its context.
    feature_lists
        Of a SequenceExample: for each name the values of each step.
    """

    features: dict[str, Values] = field(default_factory=dict)
    feature_lists: dict[str, list[Values]] = field(default_factory=dict)


def _varint(data: bytes, at: int, end: int, most: int = 10) -> tuple[int, int]:
    value = shift = 0
    for i in range(at, min(end, at + most)):
        byte = data[i]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 -- the bit that says that more bytes follow
            return value, i + 1
        shift += 7
    raise MalformedExample("a number reaches beyond the end of its message, or is too long")


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Give number, wire type and range of each field of a message."""
    while at < end:
        tag, at = _varint(data, at, end, 5)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag > 0xFFFFFFFF:  # noqa: PLR2004 -- tags have 32 bits
            raise MalformedExample(f"a tag has field number {number}")
        start, at = _value(data, at, end, number, wire_type)
        yield number, wire_type, start, at


def _value(data: bytes, at: int, end: int, number: int, wire_type: int) -> tuple[int, int]:
    start = at
    if wire_type == _VARINT:
        _, at = _varint(data, at, end)
    elif wire_type == _BYTES:
        length, start = _varint(data, at, end, 5)
        at = start + length
    elif wire_type in (_FIXED32, _FIXED64):
        at += 4 if wire_type == _FIXED32 else 8
    elif wire_type == _GROUP:
        at = _group(data, at, end, number)
    else:
        raise MalformedExample(f"unexpected wire type {wire_type}")
    if at > end or at - start > _MAX_LENGTH:
        raise MalformedExample("a field reaches beyond the end of its message")
    return start, at


def _group(data: bytes, at: int, end: int, number: int) -> int:
    open_groups = [number]
    while open_groups:
        tag, at = _varint(data, at, end, 5)
        inner, wire_type = tag >> 3, tag & 7
        if inner == 0 or tag > 0xFFFFFFFF:  # noqa: PLR2004 -- tags have 32 bits
            raise MalformedExample(f"a tag has field number {inner}")
        if wire_type == _GROUP:
            open_groups.append(inner)
            if len(open_groups) > _MAX_DEPTH:
                raise MalformedExample("groups are nested too deep")
        elif wire_type == _END_GROUP:
            if open_groups.pop() != inner:
                raise MalformedExample("a group ends with another group's number")
        else:
            _, at = _value(data, at, end, inner, wire_type)
    return at


def _int64s(data: bytes, at: int, end: int) -> Iterator[int]:
    while at < end:
        value, at = _varint(data, at, end)
        value &= 0xFFFFFFFFFFFFFFFF
        yield value - (1 << 64) if value >> 63 else value


def _list(data: bytes, kind: int) -> Values:
    chunks: list[bytes] = []
    numbers: list[int] = []
    for number, wire_type, start, end in _fields(data, 0, len(data)):
        if number != 1:
            continue
        if kind == _BYTES_LIST and wire_type == _BYTES:
            chunks.append(data[start:end])
        elif kind == _FLOAT_LIST and wire_type in (_BYTES, _FIXED32):
            if (end - start) % 4:
                raise MalformedExample(f"a packed list of floats has {end - start} bytes")
            chunks.append(data[start:end])
        elif kind == _INT64_LIST and wire_type in (_BYTES, _VARINT):
            numbers.extend(_int64s(data, start, end))
    if kind == _BYTES_LIST:
        return chunks
    if kind == _FLOAT_LIST:
        return np.frombuffer(b"".join(chunks), "<f4")
    return np.array(numbers, np.int64)


def _feature(data: bytes) -> Values:
    kind = 0
    parts: list[bytes] = []
    values: Values = None
    for number, wire_type, start, end in _fields(data, 0, len(data)):
        if wire_type == _BYTES and number in (_BYTES_LIST, _FLOAT_LIST, _INT64_LIST):
            if number != kind:
                # The last kind wins.
                parts = []
                kind = number
            parts.append(data[start:end])
            # Each part must be sound by itself, even if a later one replaces it.
            values = _list(parts[-1], kind)
    return values if len(parts) < 2 else _list(b"".join(parts), kind)  # noqa: PLR2004 -- to merge


def _steps(data: bytes) -> list[Values]:
    return [
        _feature(data[start:end])
        for number, wire_type, start, end in _fields(data, 0, len(data))
        if number == 1 and wire_type == _BYTES
    ]


def _entries(
    data: bytes, start: int, end: int, parse: Callable[[bytes], _Parsed]
) -> Iterator[tuple[str, _Parsed]]:
    for number, wire_type, entry, entry_end in _fields(data, start, end):
        if number != 1 or wire_type != _BYTES:
            continue
        key = ""
        values: list[bytes] = []
        for inner, inner_type, at, inner_end in _fields(data, entry, entry_end):
            if inner == 1 and inner_type == _BYTES:
                try:
                    key = data[at:inner_end].decode()
                except UnicodeDecodeError as error:
                    raise MalformedExample("the name of a feature is not valid UTF-8") from error
            elif inner == 2 and inner_type == _BYTES:  # noqa: PLR2004 -- a map's value
                part = data[at:inner_end]
                if values:
                    # To merge messages is to parse one behind the other, once each is sound.
                    parse(values[-1])
                    parse(part)
                values.append(part)
        yield key, parse(b"".join(values))


def parse_example(data: bytes | bytearray | memoryview, *, sequence: bool = False) -> Example:
    """Parse a serialized Example, or SequenceExample.

    What is accepted and which value wins is as in protobuf.

    Raises
    ------
    MalformedExample
        If the bytes are no such message.
    """
    data = bytes(data) if isinstance(data, bytearray | memoryview) else data
    example = Example()
    for number, wire_type, start, end in _fields(data, 0, len(data)):
        if wire_type != _BYTES:
            continue
        if number == 1:
            example.features.update(_entries(data, start, end, _feature))
        elif number == 2 and sequence:  # noqa: PLR2004 -- SequenceExample.feature_lists
            example.feature_lists.update(_entries(data, start, end, _steps))
    return example


def _encode_varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 -- seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _encode_varint(len(content)) + content


#: The list of each kind of value, what it holds in words, and the types that are of the kind.
_KINDS: Final = (
    (_INT64_LIST, "whole numbers", (bool, int, np.bool_, np.integer)),
    (_FLOAT_LIST, "floats", (float, np.float32, np.float16)),
    (_BYTES_LIST, "text or bytes", (str, bytes, bytearray)),
)
_KIND_OF_DTYPE: Final = {"b": _INT64_LIST, "i": _INT64_LIST, "u": _INT64_LIST, "f": _FLOAT_LIST}
_INT64: Final = np.iinfo(np.int64)
_FLOAT32_BYTES: Final = 4


def _kind_of(name: str, values: Any) -> int | None:
    """Return the list that holds a feature's values, by all of their types; None: there are none.

    Raises
    ------
    InvalidArgument
        No list holds them, or no single one.
    """
    if isinstance(values, np.ndarray):
        if values.dtype.kind in _KIND_OF_DTYPE:
            return _KIND_OF_DTYPE[values.dtype.kind]
        if values.dtype.kind in "SU":
            return _BYTES_LIST
    found: dict[int, type] = {}
    for type_ in set(map(type, values)):
        kind = next((kind for kind, _, types in _KINDS if issubclass(type_, types)), None)
        if kind is None:
            raise InvalidArgument(
                f"feature {name!r} has a value of type {type_.__name__}, which an Example can't "
                "hold; it holds ints or bools, floats, and str or bytes, in a flat list. Convert "
                "it first."
            )
        found[kind] = type_
    if len(found) > 1:
        words = [f"{said} ({found[kind].__name__})" for kind, said, _ in _KINDS if kind in found]
        hint = "" if _BYTES_LIST in found else ", as in [float(value) for value in values]"
        raise InvalidArgument(f"feature {name!r} mixes {' with '.join(words)}; use one kind{hint}.")
    return next(iter(found), None)


def _sequence(name: str, values: Any) -> list[Any] | np.ndarray:
    """Return values that can be looked at twice.

    Raises
    ------
    InvalidArgument
        They are a single value, or have no order.
    """
    if isinstance(values, list) or (type(values) is np.ndarray and values.ndim == 1):
        return values
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidArgument(
            f"feature {name!r} is an array with masked values, and a list can't hold nulls: give "
            "array.filled(value) or array.compressed()."
        )
    is_array = hasattr(values, "__array__") and hasattr(values, "dtype")  # numpy, tensors, pandas
    if is_array and not isinstance(values, np.generic):
        return np.asarray(values).reshape(-1)
    single = str | bytes | bytearray | memoryview
    if isinstance(values, single | Mapping | AbstractSet) or not isinstance(values, Iterable):
        raise InvalidArgument(
            f"feature {name!r} is of type {type(values).__name__}; give a list of values, such as "
            "[7], [0.5] or ['text']."
        )
    return list(values)


def _int64_list(name: str, values: list[Any] | np.ndarray) -> bytes:
    found = values.tolist() if isinstance(values, np.ndarray) else values
    numbers = [int(value) for value in found]
    if numbers and not (_INT64.min <= min(numbers) and max(numbers) <= _INT64.max):
        wrong = next(n for n in numbers if not _INT64.min <= n <= _INT64.max)
        raise DataError(
            f"feature {name!r} has the value {wrong}, which doesn't fit into the 64 bits of an "
            "Int64List; write it as a float or as text."
        )
    return b"".join(map(_encode_varint, numbers))


def _float_list(name: str, values: list[Any] | np.ndarray) -> bytes:
    if not isinstance(values, np.ndarray) or values.dtype == object:
        try:
            return struct.pack(f"<{len(values)}f", *values)
        except OverflowError:
            values = np.array(values, np.float64)
    if values.dtype.itemsize <= _FLOAT32_BYTES:
        return values.astype("<f4", copy=False).tobytes()
    with np.errstate(over="ignore"):
        packed = values.astype("<f4")
    became_infinite = np.isinf(packed)
    if became_infinite.any() and (became_infinite := became_infinite & np.isfinite(values)).any():
        raise DataError(
            f"feature {name!r} has the value {values[became_infinite][0]}, which doesn't fit into "
            "the 32 bits of a FloatList's numbers; scale it."
        )
    return packed.tobytes()


def _bytes_list(name: str, values: list[Any] | np.ndarray) -> bytes:
    try:
        return b"".join(
            _message(1, value.encode() if isinstance(value, str) else bytes(value))
            for value in values
        )
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"feature {name!r} has text that isn't Unicode: {error}") from error


def _encode_feature(name: str, values: Any, kind: int | None = None) -> bytes:
    """Return a feature; of a kind that is known for values that don't tell theirs."""
    if values is None:
        return b""
    values = _sequence(name, values)
    kind = _kind_of(name, values) or kind or _BYTES_LIST
    if kind == _BYTES_LIST:
        return _message(_BYTES_LIST, _bytes_list(name, values))
    packed = (_float_list if kind == _FLOAT_LIST else _int64_list)(name, values)
    return _message(kind, _message(1, packed) if packed else b"")


def _encode_steps(name: str, steps: Iterable[Any]) -> bytes:
    given = [None if step is None else _sequence(name, step) for step in steps]
    kinds = {kind for step in given if step is not None and (kind := _kind_of(name, step))}
    if len(kinds) > 1:
        said = " and ".join(words for kind, words, _ in _KINDS if kind in kinds)
        raise InvalidArgument(
            f"feature list {name!r} has steps of {said}; use one kind for all of its steps."
        )
    kind = next(iter(kinds), None)
    return b"".join(_message(1, _encode_feature(name, step, kind)) for step in given)


def _map(entries: Mapping[str, bytes]) -> bytes:
    return b"".join(
        _message(1, _message(1, _utf8(name)) + _message(2, value))
        for name, value in entries.items()
    )


def _utf8(name: object) -> bytes:
    """Return the name of a feature as protobuf stores it."""
    msg = f"the name of a feature must be text in Unicode, got {name!r}."
    if not isinstance(name, str):
        raise InvalidArgument(msg)
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(msg) from error


def serialize_example(
    features: Mapping[str, Sequence[object] | np.ndarray | None],
    feature_lists: Mapping[str, Sequence[Sequence[object] | np.ndarray]] | None = None,
) -> bytes:
    """Serialize an Example, or a SequenceExample if there are feature lists.

    Parameters
    ----------
    features
        For each name a sequence of ints or bools (Int64List), floats (FloatList), str or bytes
        (BytesList); an empty plain list becomes a BytesList, an empty numpy array tells its kind
        by its dtype. Arrays are flattened, row by row. None leaves the feature out.
    feature_lists
        For each name such a sequence for each step, all of one kind.

    Raises
    ------
    InvalidArgument
        Values of different kinds in one feature, or of a type that an Example doesn't have, such
        as Decimal: nothing is converted. Or a name that isn't text.
    DataError
        A number beyond the range of int64 or float32. Infinity and NaN may be written.
    """
    encoded = {n: _encode_feature(n, v) for n, v in features.items() if v is not None}
    record = _message(1, _map(encoded))
    if feature_lists is not None:
        lists = {name: _encode_steps(name, steps) for name, steps in feature_lists.items()}
        record += _message(2, _map(lists))
    return record
