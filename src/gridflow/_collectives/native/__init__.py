"""The exchange of a step in C: as `gridflow._collectives.host` does it, without Python.

It is built with the wheel where there is a C compiler (``build.py``). Without it, or with
``GRIDFLOW_NATIVE=0`` in the environment, everything goes through Python.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._collectives.native.build import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

#: How an exchange ends, in the order of ``exchange.h``.
DONE, LATE, GONE, LEFT, CUT, TOLD, IN_ANOTHER, OTHER_SHAPES, IN_PYTHON = range(9)
#: What ranks call the ways in which one goes missing.
WHYS: Final = {LATE: "late", GONE: "gone", LEFT: "left", CUT: "cut"}
_LOCK_BYTES: Final = 64
#: Of the words about an exchange that failed in Python.
FAILURE_BYTES: Final = 512


class Header(ctypes.Structure):
    """What begins a message between two ranks."""

    _fields_ = (
        ("operation", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("dtype", ctypes.c_char * 8),
        ("stage", ctypes.c_uint64),
    )


class Arrays(ctypes.Structure):
    """Several arrays that travel as one."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("given", ctypes.POINTER(ctypes.c_void_p)),
        ("sums", ctypes.POINTER(ctypes.c_void_p)),
        ("lengths", ctypes.POINTER(ctypes.c_int64)),
        ("weight", ctypes.c_int64),
        ("weights", ctypes.POINTER(ctypes.c_int64)),
        ("checksum", ctypes.c_uint32),
    )


#: What takes the exchanges that C leaves to Python.
InPython = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Arrays))


class GroupState(ctypes.Structure):
    """What C and Python both know of a group.

    `told`, `asked`, `heard`, `waited`: See `gridflow._collectives.host.HostGroup`.
    """

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("place", ctypes.c_int32),
        ("places", ctypes.c_int32),
        ("hosts", ctypes.c_int32),
        ("ranks", ctypes.POINTER(ctypes.c_int32)),
        ("links", ctypes.POINTER(ctypes.c_int32)),
        ("names", ctypes.POINTER(ctypes.c_int32)),
        ("count", ctypes.c_uint64),
        ("memory", ctypes.c_void_p),
        ("room", ctypes.c_uint64),
        ("side", ctypes.c_int32),
        ("told", ctypes.c_uint8),
        ("asked", ctypes.c_uint8),
        ("heard", ctypes.c_uint8),
        ("waited", ctypes.c_double),
        ("missing", ctypes.c_int32),
        ("said", Header),
        ("in_python", InPython),
        ("failure", ctypes.c_char * FAILURE_BYTES),
        ("lock", ctypes.c_uint64 * (_LOCK_BYTES // 8)),
    )

    @classmethod
    def of(
        cls,
        ranks: Sequence[int],
        rank: int,
        names: Sequence[int],
        links: Sequence[int],
        hosts: int,
    ) -> GroupState:
        """Return the state of a new group.

        `names`: What errors call all ranks.
        `links`: The sockets of the ranks of this host; of this rank -1.
        """
        return cls(
            rank=rank,
            size=len(names),
            place=ranks.index(rank),
            places=len(ranks),
            hosts=hosts,
            ranks=_whole_numbers(ranks),
            links=_whole_numbers(links),
            names=_whole_numbers(names),
        )


class GroupLock:
    """The lock of a group, for C and for Python."""

    def __init__(self, state: GroupState, library: ctypes.CDLL) -> None:
        self._state, self._library = ctypes.byref(state), library

    def __enter__(self) -> None:
        self._library.gridflow_lock(self._state)

    def __exit__(self, *_: object) -> None:
        self._library.gridflow_unlock(self._state)


@functools.cache
def loaded() -> ctypes.CDLL | None:
    """Return the exchange in C, or None."""
    path = path_of("exchange")
    return None if path is None else load(path)


def load(path: Path) -> ctypes.CDLL | None:
    """Return a library, or None if it wasn't built for this system and these sources."""
    try:
        found = ctypes.CDLL(str(path))
    except OSError:
        return None
    for name in ("gridflow_lock", "gridflow_unlock"):
        getattr(found, name).restype = None
    sizes = [ctypes.sizeof(each) for each in (GroupState, Arrays)]
    return found if sizes == [found.gridflow_size_of(which) for which in range(2)] else None


def path_of(name: str) -> Path | None:
    """Return a library that was built, or None."""
    path = Path(__file__).with_name(name + SUFFIX)
    return path if path.exists() and os.environ.get("GRIDFLOW_NATIVE") != "0" else None


class NativeArrays:
    """Arrays for C, of float32 and one after the other in memory.

    `weight`: How much this rank counts. Default: sums are computed instead of means.
    `checksum`: Of what must be the same on all ranks.
    `size`: Number of ranks.
    """

    def __init__(
        self,
        arrays: Sequence[np.ndarray[Any, Any]],
        weight: int | None,
        checksum: int,
        size: int,
    ) -> None:
        self._arrays = arrays
        self._weights = (ctypes.c_int64 * size)()
        self._fields = Arrays(
            count=len(arrays),
            given=_pointers(arrays),
            lengths=(ctypes.c_int64 * len(arrays))(*map(len, arrays)),
            weight=-1 if weight is None else weight,
            weights=self._weights,
            checksum=checksum,
        )

    @property
    def given(self) -> Any:
        """The arrays, by reference."""
        return ctypes.byref(self._fields)

    def into(self, sums: Sequence[np.ndarray[Any, Any]]) -> Any:
        """Return the arrays by reference, with where sums belong."""
        self._fields.sums = _pointers(sums)
        return ctypes.byref(self._fields)

    @property
    def weights(self) -> list[int]:
        """How much the ranks count, after the exchange."""
        return list(self._weights)


def _pointers(arrays: Sequence[np.ndarray[Any, Any]]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(each.ctypes.data for each in arrays))


def _whole_numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)
