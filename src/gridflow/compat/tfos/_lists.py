"""Lists of numbers that numpy converts to arrays without visiting each item.

A typical TensorFlowOnSpark program calls ``np.array([row[0] for row in batch])``. For numpy, the
rows' lists contain Python objects to convert one by one: 20 µs for 784 floats, as long as creating
them took. But the columns that the lists come from are arrays already.
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

#: Size of a Python float; wider types hold more than a Python float can.
_DOUBLE_BYTES: Final = 8
#: The types that numpy chooses for Python floats and ints.
_NATURAL: Final = {"f": np.float64, "i": np.int64}

#: The garbage collector needn't track containers that hold only numbers, and doesn't for tuples. It
#: would visit each list several times (https://docs.python.org/3/c-api/gcsupport.html).
_of_collector: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)
_untrack: Final = _of_collector(("PyObject_GC_UnTrack", ctypes.pythonapi))
_track: Final = _of_collector(("PyObject_GC_Track", ctypes.pythonapi))


class NumberList(list[Any]):
    """A list of ints or floats that remembers its source array until it is changed.

    It is a full list with all its items. Pickling or copying it gives a plain list.

    `items`: With `numbers`: its items as a list, from `numpy.ndarray.tolist`; kept without a copy.
    `numbers` (array of shape (n,)): Ints or floats; must not be changed afterwards.
    """

    __slots__ = ("_made", "_numbers")

    def __init__(self, items: Iterable[Any] = (), numbers: np.ndarray | None = None) -> None:
        super().__init__(items)
        self._made, self._numbers = None if numbers is None else items, numbers
        if numbers is not None:
            _untrack(items)
            _untrack(self)

    def numbers(self) -> np.ndarray | None:
        """Return the array, or None if the list has changed."""
        # Detects changes made in C. Fast, because identical objects aren't compared by value.
        return self._numbers if self._made is not None and self == self._made else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the same array that numpy makes from a plain list of the items."""
        numbers = self.numbers()
        kind = None if dtype is None else np.dtype(dtype)
        if numbers is None or copy is False or not _is_same(numbers.dtype, kind):
            options: dict[str, Any] = {} if copy is None else {"copy": copy}
            plain: np.ndarray = np.array(list(self), dtype, **options)
            return plain
        if kind is None:
            return numbers.astype(_NATURAL[numbers.dtype.kind])
        if kind.kind != numbers.dtype.kind:  # numpy converts an int to a Python float first
            numbers = numbers.astype(np.float64)
        return numbers.astype(kind)

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Pickle as a plain list."""
        return list, (list(self),)

    def __reduce_ex__(self, _: Any) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Pickle as a plain list."""
        return self.__reduce__()


def _forgetting(name: str) -> Callable[..., Any]:
    """Return a list method that also drops the array.

    Comparing items would miss a replacement by an equal value, such as 0.0 by -0.0.
    """
    change = getattr(list, name)

    def method(self: NumberList, *arguments: Any) -> Any:
        self._made = None
        if not gc.is_tracked(self):
            _track(self)  # from now on it may hold any object
        return change(self, *arguments)

    return method


for _name in ("__setitem__", "__iadd__", "append", "extend", "insert"):
    setattr(NumberList, _name, _forgetting(_name))


def _is_same(source: np.dtype[Any], kind: np.dtype[Any] | None) -> bool:
    """Return whether converting the array gives the same result as converting its items.

    It doesn't for NaN or for ints that don't fit an integer type: only items raise an error.
    """
    if kind is None:
        return True
    if kind.kind == "f":
        return kind.itemsize <= _DOUBLE_BYTES
    return source.kind == kind.kind == "i" and np.can_cast(source, kind)


def number_lists(rows: np.ndarray) -> list[list[Any]]:
    """Return the rows of a matrix as lists; the matrix may be overwritten afterwards."""
    own = rows.copy()
    return [NumberList(*each) for each in zip(own.tolist(), own, strict=True)]


def pickled(rows: list[Any]) -> bytes:
    """Return pickled rows; `pickle.loads` restores each `NumberList` with its array.

    Raises `pickle.PicklingError`, `AttributeError`, `TypeError`: As `pickle.dumps`.
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
