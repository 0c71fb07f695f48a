"""Plain values as bytes and back, for values that ranks send each other. Nothing is unpickled.

Types survive: a tuple stays a tuple, an array keeps its type and shape.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gridflow.errors import InvalidArgument, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Bytes of one value.
MOST_BYTES: Final = 1 << 20
#: Total bytes of the values of all ranks.
MOST_TOGETHER: Final = 16 << 20
#: How deeply lists, tuples and dicts may be nested.
_DEEPEST: Final = 64
#: Types that msgpack lacks, or confuses with others.
_TUPLE, _ARRAY, _INTEGER, _DICT = 1, 2, 3, 4
_PLAIN: Final = (bool, float, str, bytes)
_ARRAY_KINDS: Final = "biufcSUmM"
_ALLOWED: Final = (
    "None, numbers, strings, bytes, numpy arrays of those, and lists, tuples and dicts of them"
)


def pack(value: Any, most: int = MOST_BYTES) -> bytes:
    """Return a value as bytes.

    Raises `InvalidArgument`: It isn't plain, or is larger than `most` bytes.
    """
    packed = msgspec.msgpack.encode(_taken_apart(value, _DEEPEST))
    if len(packed) > most:
        raise InvalidArgument(
            f"value too large to send between ranks: {len(packed):,} bytes (limit {most:,}). "
            "Write it to storage that all ranks can read, and send the path."
        )
    return packed


def unpack(data: bytes) -> Any:
    """Return the value from the bytes that `pack` made of it.

    Raises `WireError`: The bytes aren't a value.
    """
    try:
        return msgspec.msgpack.decode(data, ext_hook=_put_together)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, EOFError) as error:
        raise WireError(f"can't read a value from another rank: {error}") from error


def _taken_apart(value: Any, deep: int) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is int:
        fits = -(1 << 63) <= value < 1 << 64
        return value if fits else _as(_INTEGER, hex(value))
    if not deep:
        raise InvalidArgument(
            f"value nested too deeply to send between ranks (limit: {_DEEPEST} levels)."
        )
    if type(value) is list:
        return [_taken_apart(each, deep - 1) for each in value]
    if type(value) is tuple:
        return _as(_TUPLE, [_taken_apart(each, deep - 1) for each in value])
    if type(value) is dict:
        pairs = [[_taken_apart(each, deep - 1) for each in pair] for pair in value.items()]
        return _as(_DICT, pairs)
    return _array_of(value)


def _array_of(value: Any) -> msgspec.msgpack.Ext:
    import numpy as np

    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.kind in _ARRAY_KINDS:
            file = io.BytesIO()
            np.save(file, array, allow_pickle=False)
            is_scalar = isinstance(value, np.generic)
            return _as(_ARRAY, [is_scalar, file.getvalue()])
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind += f" of {value.dtype}"
    raise InvalidArgument(
        f"ranks can send each other {_ALLOWED}; got {kind}. Convert a tensor with .numpy(); "
        "write anything else to storage that all ranks can read."
    )


def _as(code: int, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))


def _put_together(code: int, data: memoryview) -> Any:
    content: Any = msgspec.msgpack.decode(bytes(data), ext_hook=_put_together)
    return _MAKERS[code](content)


def _array(content: Any) -> Any:
    import numpy as np

    is_scalar, data = content
    array = np.load(io.BytesIO(data), allow_pickle=False)
    return array[()] if is_scalar else array


_MAKERS: Final[Mapping[int, Callable[[Any], Any]]] = {
    _TUPLE: tuple,
    _ARRAY: _array,
    _INTEGER: lambda text: int(text, 16),
    _DICT: dict,
}
