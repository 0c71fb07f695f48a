"""Methods of Keras that are patched: each once, with its wrappers in a declared order.

Several matters concern one method: ``fit`` refuses a model of nobody's, is under the job's
deadlines, and validates on each row once. Which comes first mustn't depend on what is installed
first.
"""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches.private_parts import part

if TYPE_CHECKING:
    from collections.abc import Callable

_WRAPPERS: Final = "_gridflow_wrappers"


class Layer(enum.IntEnum):
    """What a wrapper is for: the first is the outermost.

    In one layer, the wrapper that is installed last is the outermost.
    """

    #: Refuse what can't be done.
    CHECK = enum.auto()
    #: Put it under the job's deadlines.
    DEADLINES = enum.auto()
    #: Begin at the position of a checkpoint.
    POSITION = enum.auto()
    #: Let something else do it: ``ctx.fit``, or a process for itself.
    ROUTE = enum.auto()
    #: Exchange the rows, or their order.
    ROWS = enum.auto()
    #: Mend what is broken.
    BUG = enum.auto()


class _Wrappers:
    """The wrappers of one method."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = self.call = original
        self._known: list[tuple[Layer, Callable[..., Any]]] = []

    def add(self, wrapper: Callable[..., Any], layer: Layer) -> None:
        """Put a wrapper outside of those of its layer, and of the layers behind."""
        place = next((i for i, (each, _) in enumerate(self._known) if each >= layer), None)
        self._known.insert(len(self._known) if place is None else place, (layer, wrapper))
        self.call = self.original
        for _, each in reversed(self._known):
            self.call = functools.partial(each, self.call)


def wrap(owner: Any, name: str, wrapper: Callable[..., Any], layer: Layer) -> None:
    """Let a wrapper be called instead of a method or function.

    Parameters
    ----------
    owner : type or module
        Which is patched, also where it has inherited the method.
    name : str
    wrapper : callable
        Called with what it wraps, and then with the arguments, ``self`` first.
    layer : Layer

    Raises
    ------
    MissingPart
        The owner has no method of that name.
    """
    wrappers = getattr(vars(owner).get(name), _WRAPPERS, None)
    if wrappers is None:
        original = part(owner, name)
        wrappers = _Wrappers(original)

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return wrappers.call(*args, **kwargs)

        setattr(patched, _WRAPPERS, wrappers)
        setattr(owner, name, patched)
    wrappers.add(wrapper, layer)
