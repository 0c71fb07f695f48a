"""Models with a custom ``train_step`` or ``compute_loss``, on several ranks.

Each rank computes what one process would compute on its rows, and gradients are averaged. A class
that scales losses itself uses one of the names needed for that; it sees the number of ranks, and
gradients are added up. A factor that was computed elsewhere can't be recognised, so the log says
that gradients are averaged.
"""

from __future__ import annotations

import functools
import logging
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: Names used by steps that handle replicas themselves.
_SCALING: Final = frozenset(
    {"num_replicas_in_sync", "compute_average_loss", "scale_loss_for_distribution", "all_reduce"}
)
_METHODS: Final = ("train_step", "test_step", "compute_loss")


@functools.cache
def say(name: str) -> None:
    """Log once how the gradients of a class are averaged."""
    _log.warning(
        "%s overrides losses or steps: its gradients are averaged over the ranks, as if one "
        "process trained on each batch. If it scales losses itself, make it use "
        "num_replicas_in_sync; then gradients are added up.",
        name,
    )


def has_own(cls: type) -> bool:
    """Return whether a model class overrides the methods for losses or updates."""
    return any(not _is_keras(_owner(cls, name)) for name in _METHODS)


def scales_itself(cls: type) -> bool:
    """Return whether a user's class, or a function that it uses, scales losses itself."""
    seen: set[int] = set()
    return any(
        _scales(value, seen)
        for owner in cls.__mro__
        if not _is_keras(owner)
        for value in vars(owner).values()
    )


def _scales(value: Any, seen: set[int]) -> bool:
    function = getattr(value, "python_function", value)  # of a tf.function
    if not isinstance(function, FunctionType) or id(function) in seen:
        return False
    seen.add(id(function))
    if _is_keras(function):
        return False
    names = set(_names(function.__code__))
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    used = [*cells, *(function.__globals__.get(name) for name in names)]
    return bool(_SCALING & names) or any(_scales(each, seen) for each in used)


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:  # a name that is bound later, or never
        return False
    return True


def _owner(cls: type, name: str) -> type:
    return next((owner for owner in cls.__mro__ if name in vars(owner)), object)


def _is_keras(it: Any) -> bool:
    package = (it.__module__ or "").split(".")[0]
    return it is object or package in {"keras", "tf_keras", "tensorflow"}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
