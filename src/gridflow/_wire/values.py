"""Plain values as bytes and back, for ranks that tell one another something. Nothing is unpickled.

What comes back is what went in: a tuple stays one, an array keeps its type and shape.
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
#: Bytes of the values of all ranks together.
MOST_TOGETHER: Final = 16 << 20
#: How deep lists, tuples and dicts may lie in one another.
_DEEPEST: Final = 64
#: What msgpack has no word for, or takes for something else.
_TUPLE, _ARRAY, _INTEGER, _DICT = 1, 2, 3, 4
_PLAIN: Final = (bool, float, str, bytes)
_ARRAY_KINDS: Final = "biufcSUmM"
_ALLOWED: Final = (
    "None, numbers, strings, bytes, numpy arrays of those, and lists, tuples and dicts of them"
)


def pack(value: Any, most: int = MOST_BYTES) -> bytes:
    """Return a value as bytes.

    Raises
    ------
    InvalidArgument
        It isn't plain, or larger than `most` bytes.
    """
    packed = msgspec.msgpack.encode(_taken_apart(value, _DEEPEST))
    if len(packed) > most:
        raise InvalidArgument(
            f"a value that ranks send one another takes at most {most:,} bytes; this one takes "
            f"{len(packed):,}. Write it to storage that all ranks read, and send the path."
        )
    return packed


def unpack(data: bytes) -> Any:
    """Return the value that `pack` made some bytes of.

    Raises
    ------
    WireError
        They are of no value.
    """
    try:
        return msgspec.msgpack.decode(data, ext_hook=_put_together)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, EOFError) as error:
        raise WireError(f"a value of another rank can't be read: {error}") from error


def _taken_apart(value: Any, deep: int) -> Any:
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is int:
        fits = -(1 << 63) <= value < 1 << 64
        return value if fits else _as(_INTEGER, hex(value))
    if not deep:
        raise InvalidArgument(
            f"a value that ranks send one another may be nested at most {_DEEPEST} levels deep."
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
        f"ranks can send one another {_ALLOWED}; got {kind}. A tensor becomes an array by "
        ".numpy(); anything else can be written to storage that all ranks read."
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
