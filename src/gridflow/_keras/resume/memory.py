"""What callbacks remember, for a checkpoint: numbers and text, no code.

A callback's memory is in its attributes, in those of the user's own objects that it refers to, and
in the variables of the functions that it consists of (`LambdaCallback`, a class defined in the
training function). Only what has changed since the fit began is kept: the rest is how the callback
was made, which may differ between ranks and runs. It is restored in place, since others may refer
to the same list, dict, array or variable.
"""

from __future__ import annotations

import collections
import hashlib
import logging
import random
import sys
from contextlib import suppress
from pathlib import Path
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._keras.results import FLAVOURS
from gridflow._spec.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_log = logging.getLogger(__name__)

#: The memory of something that can't be kept.
_UNKNOWN: Final[dict[str, Any]] = {"unknown": ""}
#: A memory that is as it was first.
_SAME: Final = object()
_PLAIN: Final = (type(None), bool, int, float, str)
_CONTAINERS: Final[Mapping[str, Any]] = {
    "list": list,
    "deque": collections.deque,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
#: Kinds of memory that are one array.
_ARRAYS: Final = ("array", "scalar", "tensor", "variable")
_TENSORS: Final = (*BACKENDS, "jaxlib")
#: Callbacks of Keras's own whose other attributes concern the process, and what is memory in them.
_OF_PROCESS: Final[Mapping[str, tuple[str, ...]]] = {
    "ProgbarLogger": (),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "CSVLogger": (),
}
#: Keras sets them up at the first epoch's end, the second one by changing the sign of the user's.
_SET_UP: Final = ("monitor_op", "min_delta")
#: The class of variables that are summed over the ranks when they are read.
_SHARED: Final = "SyncOnReadVariable"
#: What attributes of an object's class end with in its memory.
_OF_CLASS: Final = "()"
#: The size of a CSVLogger's file.
_SIZE: Final = "size of its file"


class Memory:
    """The memory of a fit's callbacks.

    `callbacks`: All of them; gridflow's own are left out.
    `known`: Returns objects and variables that the checkpoint has anyway: model, optimizers, and
        theirs.
    `is_restored`: Whether `restore` will be called.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        known: Callable[[], Iterable[Any]],
        *,
        is_restored: bool,
    ) -> None:
        self._callbacks, self._known = dict(_named(callbacks)), known
        reader = _Reader(known())
        self._first = self._read(reader)
        arrays = reader.arrays if is_restored else {}
        self._first_arrays = {name: array.copy() for name, array in arrays.items()}

    def read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what has changed since the fit began, and the arrays in it by name."""
        reader = _Reader(self._known())
        now = self._read(reader)
        found = {name: _changed(self._first[name], each) for name, each in now.items()}
        changed = {name: each for name, each in found.items() if each is not _SAME}
        # Copies, as callbacks go on while they are written.
        arrays = {name: reader.arrays[name].copy() for name in set(_names_in(changed))}
        return changed, arrays

    def _read(self, reader: _Reader) -> dict[str, Any]:
        return {name: reader.memory_of(each) for name, each in self._callbacks.items()}

    def restore(self, told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Set what was read, and the rest as it was first. All ranks get the chief's memory."""
        known = list(self._known())
        now = self._read(_Reader(known))
        arrays = {**self._first_arrays, **arrays}
        for name, callback in self._callbacks.items():
            for memory in (_changed(now[name], self._first[name]), told.get(name, _SAME)):
                if memory is not _SAME:
                    _Setter(arrays, known).set_attributes(callback, memory["object"], name)


def continue_files(callbacks: Sequence[Any], told: Mapping[str, Any]) -> None:
    """Make CSVLoggers go on with their files as they were; before they open them."""
    for name, callback in _named(callbacks):
        size = told.get(name, {}).get("object", {}).get(_SIZE)
        path = Path(str(getattr(callback, "filename", "")))
        with suppress(OSError):  # on another host, or in a store, it starts again
            if size is not None and path.stat().st_size >= size:
                with path.open("r+b") as file:
                    file.truncate(size)
                callback.append = True


def _named(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Return the callbacks that aren't gridflow's own, by class and number."""
    numbers: collections.Counter[str] = collections.Counter()
    for callback in callbacks:
        kind = type(callback)
        if kind.__module__.partition(".")[0] != "gridflow":
            yield f"{kind.__qualname__} {numbers[kind.__qualname__]}", callback
            numbers[kind.__qualname__] += 1


# Reading ------------------------------------------------------------------------------------------


class _Reader:
    """Turns memory into plain data and named arrays.

    An array's name is its content's hash, so that equal ones are stored once.
    """

    def __init__(self, known: Iterable[Any]) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._known = {id(each): each for each in known}
        #: Containers that are being read, which may contain themselves.
        self._within: set[int] = set()
        #: Objects and functions that were read: many may refer to one.
        self._seen: dict[int, Any] = {}

    def memory_of(self, value: Any) -> dict[str, Any]:
        """Return the attributes of an object, and the variables of its class's own methods."""
        self._seen[id(value)] = value
        kind, found = _keras_kind(value), {}
        chosen = _OF_PROCESS.get(kind) if _root(value) in FLAVOURS else None
        for name, each in list(getattr(value, "__dict__", {}).items()):
            if (chosen is None or name in chosen) and not (
                kind not in {"", "Callback"} and name in _SET_UP
            ):
                found[name] = self.read(each)
        if kind == "CSVLogger":
            found[_SIZE] = _size_of(value)
        for owner in type(value).__mro__:
            if _is_own(owner):
                for name, each in vars(owner).items():
                    if name == "__init__" or not name.startswith("__"):
                        found.setdefault(name + _OF_CLASS, self.read(each))
        return {"object": {name: each for name, each in found.items() if each is not _UNKNOWN}}

    def read(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if any(id(value) in each for each in (self._known, self._within, self._seen)):
            return _UNKNOWN
        self._within.add(id(value))
        try:
            return self._compound(value)
        except Exception:  # noqa: BLE001 (whatever a user's object does when it is looked at)
            return _UNKNOWN
        finally:
            self._within.discard(id(value))

    def _compound(self, value: Any) -> Any:
        for kind, cls in _CONTAINERS.items():
            if isinstance(value, cls):
                items = [self.read(each) for each in value]
                if kind in {"set", "frozenset"}:
                    items.sort(key=repr)
                return _UNKNOWN if any(each is _UNKNOWN for each in items) else {kind: items}
        if isinstance(value, dict):
            pairs = [[self.read(key), self.read(each)] for key, each in value.items()]
            is_known = all(each is not _UNKNOWN for pair in pairs for each in pair)
            return {"dict": pairs} if is_known else _UNKNOWN
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, np.ndarray | np.generic):
            return {"array" if isinstance(value, np.ndarray) else "scalar": self._array(value)}
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return {"method": self.read(value.__self__)}
        if _is_variable(value):
            return {"variable": self._array(_number(value))}
        if _root(value) in _TENSORS and hasattr(value, "dtype"):
            return {"tensor": self._array(_number(value))}
        return self._object(value)

    def _function(self, value: FunctionType) -> Any:
        if not _is_own(value) or value.__closure__ is None:
            return _UNKNOWN
        self._seen[id(value)] = value
        cells = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
            with suppress(ValueError):  # one that is still empty
                cells[name] = self.read(cell.cell_contents)
        known = {name: each for name, each in cells.items() if each is not _UNKNOWN}
        return {"function": known} if known else _UNKNOWN

    def _object(self, value: Any) -> Any:
        if isinstance(value, random.Random):
            return {"random": self.read(value.getstate())}
        if isinstance(value, np.random.Generator):
            return {"generator": self.read(value.bit_generator.state)}
        if _is_own(type(value)) or _keras_kind(value):
            return self.memory_of(value)
        variables = _variables_of(value, self._known)
        if variables:
            return {"variables": [self._array(_number(each)) for each in variables]}
        return _UNKNOWN

    def _array(self, value: Any) -> str:
        array = np.asarray(value)
        if array.dtype.hasobject or array.dtype.type is np.void:
            raise TypeError(f"an array of {array.dtype} can't be stored")
        about = f"{array.dtype} {array.shape} ".encode()
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        name = hashlib.blake2b(about + data.tobytes(), digest_size=16).hexdigest()
        self.arrays.setdefault(name, array)
        return name


def _changed(first: Any, now: Any) -> Any:
    """Return what of a memory isn't as it was first, or `_SAME`.

    Objects and functions are there already when it is restored, so only parts of them matter.
    """
    if first == now:
        return _SAME
    for kind in ("object", "function"):
        if isinstance(now, dict) and isinstance(first, dict) and kind in now and kind in first:
            before = first[kind]
            parts = {
                name: _changed(before.get(name, _UNKNOWN), each) for name, each in now[kind].items()
            }
            return {kind: {name: part for name, part in parts.items() if part is not _SAME}}
    return now


def _names_in(memory: Any) -> Iterator[str]:
    if isinstance(memory, list):
        for each in memory:
            yield from _names_in(each)
    elif isinstance(memory, dict):
        for kind, content in memory.items():
            if kind in _ARRAYS and isinstance(content, str):
                yield content
            elif kind == "variables":
                yield from content
            else:
                yield from _names_in(content)


# Setting ------------------------------------------------------------------------------------------


class _Setter:
    """Sets what `_Reader` has read, in the objects that are there."""

    def __init__(self, arrays: Mapping[str, np.ndarray], known: Iterable[Any]) -> None:
        self._arrays, self._known = arrays, {id(each): each for each in known}

    def set_attributes(self, owner: Any, memory: Mapping[str, Any], name: str) -> None:
        """Set attributes of an object, and variables of its methods."""
        there = vars(owner)
        for each, told in memory.items():
            if each == _SIZE:
                continue
            try:
                if each.endswith(_OF_CLASS):
                    title = each.removesuffix(_OF_CLASS)
                    live = getattr(type(owner), title)
                    new = self.value(live, told)
                    if new is not live:
                        setattr(type(owner), title, new)
                else:
                    there[each] = self.value(there.get(each), told)
            except Exception as error:  # noqa: BLE001 (of the user's objects, or of another program)
                _log.warning("can't restore %s of the callback %s: %s", each, name, error)

    def value(self, live: Any, told: Any) -> Any:
        """Return a value as it was told, which is the live one if that can be changed."""
        if not isinstance(told, dict):
            return told
        ((kind, content),) = told.items()
        if kind in _CONTAINERS:
            return self._container(live, kind, content)
        match kind:
            case "dict":
                return self._dict(live, content)
            case "bytes":
                return bytes.fromhex(content)
            case "scalar":
                return self._arrays[content][()]
            case "array":
                return _filled(live, self._arrays[content])
            case "tensor":
                return _tensor_like(live, self._arrays[content])
        self._change(live, kind, content)
        return live

    def _change(self, live: Any, kind: str, content: Any) -> None:
        """Set what is in something that can't be made here."""
        match kind:
            case "variable":
                live.assign(self._arrays[content])
            case "variables":
                for variable, name in zip(_variables_of(live, self._known), content, strict=True):
                    variable.assign(self._arrays[name])
            case "function":
                cells = dict(zip(live.__code__.co_freevars, live.__closure__, strict=True))
                for name, each in content.items():
                    cells[name].cell_contents = self.value(cells[name].cell_contents, each)
            case "method":
                self.value(live.__self__, content)
            case "random":
                live.setstate(self.value(None, content))
            case "generator":
                live.bit_generator.state = self.value(None, content)
            case "object":
                self.set_attributes(live, content, type(live).__qualname__)

    def _container(self, live: Any, kind: str, content: Sequence[Any]) -> Any:
        cls = _CONTAINERS[kind]
        before = list(live) if isinstance(live, list | tuple | collections.deque) else []
        before += [None] * (len(content) - len(before))
        items = [self.value(old, each) for old, each in zip(before, content, strict=False)]
        if not isinstance(live, cls):
            return cls(items)
        if isinstance(live, tuple | frozenset):
            is_plain = type(live) in {tuple, frozenset}  # otherwise it has named fields
            return type(live)(items) if is_plain else type(live)(*items)
        live.clear()
        (live.update if isinstance(live, set) else live.extend)(items)
        return live

    def _dict(self, live: Any, content: Sequence[Any]) -> Any:
        before = live if isinstance(live, dict) else {}
        keys = [self.value(None, key) for key, _ in content]
        items = {
            key: self.value(before.get(key), each)
            for key, (_, each) in zip(keys, content, strict=True)
        }
        if not isinstance(live, dict):
            return items
        live.clear()
        live.update(items)
        return live


def _filled(live: Any, value: np.ndarray) -> np.ndarray:
    if not isinstance(live, np.ndarray) or not live.flags.writeable:
        return np.array(value)
    if (live.shape, live.dtype) != (value.shape, value.dtype):
        return np.array(value)
    live[...] = value
    return live


def _tensor_like(live: Any, value: np.ndarray) -> Any:
    if hasattr(live, "copy_") and live.shape == value.shape:  # perhaps of a module
        live.detach().copy_(live.new_tensor(value))
        return live
    if "keras" in sys.modules:
        return sys.modules["keras"].ops.convert_to_tensor(value)
    return sys.modules["tensorflow"].constant(value)


# What there is ------------------------------------------------------------------------------------


def _root(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _is_own(it: Any) -> bool:
    """Return whether a class or function is the user's, not of Python or an installed package."""
    root = (getattr(it, "__module__", None) or "").partition(".")[0]
    if root == "gridflow" or root in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return not any(folder in Path(file).parts for folder in ("site-packages", "dist-packages"))


def _keras_kind(value: Any) -> str:
    """Return the name of the class of Keras's that a callback is of; empty for other objects."""
    kinds = [
        kind.__name__
        for kind in type(value).__mro__
        if kind.__module__.partition(".")[0] in FLAVOURS
    ]
    return kinds[0] if "Callback" in kinds else ""


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "numpy")


def _variables_of(value: Any, known: Mapping[int, Any]) -> list[Any]:
    """Return the variables of a layer, metric, model or optimizer that the checkpoint lacks."""
    if not any(kind.__module__.partition(".")[0] in FLAVOURS for kind in type(value).__mro__):
        return []
    found = getattr(value, "variables", [])
    found = found() if callable(found) else found
    return [each for each in found if id(each) not in known]


def _number(value: Any) -> np.ndarray:
    """Return the value of a variable or tensor."""
    if any(type(each).__name__ == _SHARED for each in (value, getattr(value, "value", None))):
        raise TypeError("all ranks would have to read it together")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    found: np.ndarray = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return found


def _size_of(logger: Any) -> int | None:
    with suppress(OSError):  # it is in a store, or isn't open yet; it is flushed at an epoch's end
        return Path(str(getattr(logger, "filename", ""))).stat().st_size
    return None
