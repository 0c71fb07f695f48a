"""Patches each Keras method at most once, with wrappers in a declared order.

Several patches may concern one method: ``fit`` rejects models outside the group, is subject to the
job's deadlines, and validates on each row once. Their order mustn't depend on the order of
installation.
"""

from __future__ import annotations

import enum
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches.private_parts import part

if TYPE_CHECKING:
    from collections.abc import Callable

_WRAPPERS: Final = "_gridflow_wrappers"


class Layer(enum.IntEnum):
    """The purpose of a wrapper; the first is the outermost.

    Within a layer, the wrapper installed last is the outermost.
    """

    #: Reject unsupported calls.
    CHECK = enum.auto()
    #: Apply the job's deadlines.
    DEADLINES = enum.auto()
    #: Start at the position of a checkpoint.
    POSITION = enum.auto()
    #: Delegate the call: to ``ctx.fit``, or to this process alone.
    ROUTE = enum.auto()
    #: Replace the rows, or change their order.
    ROWS = enum.auto()
    #: Fix bugs.
    BUG = enum.auto()


class _Wrappers:
    """The wrappers of one method."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = self.call = original
        self._known: list[tuple[Layer, Callable[..., Any]]] = []

    def add(self, wrapper: Callable[..., Any], layer: Layer) -> None:
        """Add a wrapper outside those of its layer and of later layers."""
        place = next((i for i, (each, _) in enumerate(self._known) if each >= layer), None)
        self._known.insert(len(self._known) if place is None else place, (layer, wrapper))
        self.call = self.original
        for _, each in reversed(self._known):
            self.call = functools.partial(each, self.call)


def wrap(owner: Any, name: str, wrapper: Callable[..., Any], layer: Layer) -> None:
    """Call a wrapper instead of a method or function.

    `owner`: The object to patch, even if it has inherited the method.
    `wrapper`: Called with the original and then the arguments, ``self`` first if it isn't static.
    Raises `MissingPart`: The owner has no method of that name.
    """
    known = vars(owner).get(name)
    wrappers = getattr(getattr(known, "__func__", known), _WRAPPERS, None)  # static ones are inside
    if wrappers is None:
        original = part(owner, name)
        wrappers = _Wrappers(original)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return wrappers.call(*args, **kwargs)

        setattr(patched, _WRAPPERS, wrappers)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        setattr(owner, name, staticmethod(patched) if is_static else patched)
    wrappers.add(wrapper, layer)
