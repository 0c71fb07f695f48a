"""Lists of numbers of which numpy makes arrays without going through their items.

A program of TensorFlowOnSpark has ``np.array([row[0] for row in batch])`` somewhere. To numpy the
rows' lists are Python objects, looked at one by one: 20 µs for 784 floats, as long as to make them.
The columns that they were made of are arrays already.
"""

from __future__ import annotations

import copyreg
import ctypes
import gc
import io
import pickle
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["NumberList", "number_lists", "pickled"]

#: Of a float that Python and numpy share: what is wider holds more than a float of Python.
_DOUBLE_BYTES: Final = 8
#: What numpy makes of Python's floats and ints.
_NATURAL: Final = {"f": np.float64, "i": np.int64}

#: The collector needn't look at what has nothing but numbers in it, as it doesn't at such tuples;
#: it would look at each of them, several times (https://docs.python.org/3/c-api/gcsupport.html).
_of_collector: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)
_untrack: Final = _of_collector(("PyObject_GC_UnTrack", ctypes.pythonapi))
_track: Final = _of_collector(("PyObject_GC_Track", ctypes.pythonapi))


class NumberList(list[Any]):
    """A list of ints or floats that knows the array it was made of, until it is changed.

    It is a list with all its items. Where it is pickled or copied it becomes a plain one.

    Parameters
    ----------
    items : iterable
        With an array: its items as a list, as `numpy.ndarray.tolist` makes it; is kept as it is.
    numbers : array of shape (n,), optional
        Ints or floats; is never written again.
    """

    __slots__ = ("_made", "_numbers")

    def __init__(self, items: Iterable[Any] = (), numbers: np.ndarray | None = None) -> None:
        super().__init__(items)
        self._made, self._numbers = None if numbers is None else items, numbers
        if numbers is not None:
            _untrack(items)
            _untrack(self)

    def numbers(self) -> np.ndarray | None:
        """Return the array; None once the list was changed."""
        # Items that are the same object aren't compared. It finds what code in C has changed.
        return self._numbers if self._made is not None and self == self._made else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return what numpy makes of the same items in a plain list."""
        numbers = self.numbers()
        kind = None if dtype is None else np.dtype(dtype)
        if numbers is None or copy is False or not _is_same(numbers.dtype, kind):
            options: dict[str, Any] = {} if copy is None else {"copy": copy}
            plain: np.ndarray = np.array(list(self), dtype, **options)
            return plain
        if kind is None:
            return numbers.astype(_NATURAL[numbers.dtype.kind])
        if kind.kind != numbers.dtype.kind:  # an int is made a float of Python's first
            numbers = numbers.astype(np.float64)
        return numbers.astype(kind)

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Be pickled as a plain list."""
        return list, (list(self),)

    def __reduce_ex__(self, _: Any) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Be pickled as a plain list."""
        return self.__reduce__()


def _forgetting(name: str) -> Callable[..., Any]:
    """Return a list's method after which the array counts no more.

    A change to an equal item would be seen by no comparison: -0.0 in place of 0.0.
    """
    change = getattr(list, name)

    def method(self: NumberList, *arguments: Any) -> Any:
        self._made = None
        if not gc.is_tracked(self):
            _track(self)  # from now on anything may be in it
        return change(self, *arguments)

    return method


for _name in ("__setitem__", "__iadd__", "append", "extend", "insert"):
    setattr(NumberList, _name, _forgetting(_name))


def _is_same(source: np.dtype[Any], kind: np.dtype[Any] | None) -> bool:
    """Return whether an array becomes what its items would.

    An int that an integer type can't hold is an error only as an item; so is a NaN.
    """
    if kind is None:
        return True
    if kind.kind == "f":
        return kind.itemsize <= _DOUBLE_BYTES
    return source.kind == kind.kind == "i" and np.can_cast(source, kind)


def number_lists(rows: np.ndarray) -> list[list[Any]]:
    """Return the rows of a matrix as lists; it may be overwritten afterwards."""
    own = rows.copy()
    return [NumberList(*each) for each in zip(own.tolist(), own, strict=True)]


def pickled(rows: list[Any]) -> bytes:
    """Return rows as `pickle.loads` makes them again, lists that know their array as such.

    Raises
    ------
    pickle.PicklingError, AttributeError, TypeError
        As `pickle.dumps`.
    """
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {**copyreg.dispatch_table, NumberList: _reduced}
    pickler.dump(rows)
    return file.getvalue()


def _reduced(numbers: NumberList) -> tuple[Any, ...]:
    array = numbers.numbers()
    return numbers.__reduce__() if array is None else (_again, (array.dtype.str, array.tobytes()))


def _again(kind: str, content: bytes) -> NumberList:
    numbers = np.frombuffer(content, kind)
    return NumberList(numbers.tolist(), numbers)
