"""Models with a custom ``train_step`` or ``compute_loss``, on several replicas.

Keras scales its own losses by 1/N for N replicas, so that the sum of all replicas' gradients is
that of the whole batch. Custom losses aren't scaled, so their gradients are N times too large.
Therefore nothing is scaled within a custom step, and the gradients are averaged: each replica
computes what one process would compute on its part of the batch.

A class that scales losses itself uses one of the names needed for that, and is left unchanged. A
factor that was computed elsewhere can't be recognised, so the log says that gradients are averaged.
"""

from __future__ import annotations

import functools
import logging
import threading
from contextlib import contextmanager, nullcontext
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.patches.bugs import shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

#: Names used by steps that handle replicas themselves.
_SCALING: Final = frozenset(
    {"num_replicas_in_sync", "compute_average_loss", "scale_loss_for_distribution", "all_reduce"}
)
_MARK: Final = "_gridflow_own"
_METHODS: Final = ("train_step", "test_step", "compute_loss")
_state = threading.local()


def is_active() -> bool:
    """Return whether this thread runs a step in which nothing is scaled."""
    return getattr(_state, "depth", 0) > 0


@contextmanager
def unscaled() -> Iterator[None]:
    """Scale nothing in a block, and average gradients."""
    _state.depth = getattr(_state, "depth", 0) + 1
    try:
        yield
    finally:
        _state.depth -= 1


def within(
    model: Any, step: Callable[..., Any], part_of: Callable[[Any], shares.ReplicaPart | None]
) -> Callable[..., Any]:
    """Wrap a step so that the replicas together compute the same as one process.

    Parameters
    ----------
    model
        Its class decides whether scaling is turned off in the step.
    step : callable
        Takes one replica's part of a batch.
    part_of : callable
        Returns the `Part` for it.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    own = has_own(type(model))
    if getattr(step, _MARK, False) or (own and scales_itself(type(model))):
        return step
    if not own and replicas == 1:
        return step
    if own and replicas > 1:
        _say(type(model).__name__, replicas)

    @functools.wraps(step)
    def step_of_part(batch: Any) -> Any:
        if shares.current() is not None:  # an outer step handles empty batches
            return step(batch)
        with unscaled() if own else nullcontext(), shares.of(part_of(batch)):
            return step(batch)

    setattr(step_of_part, _MARK, True)
    return step_of_part


@functools.cache
def _say(name: str, replicas: int) -> None:
    _log.warning(
        "%s overrides losses or steps: its gradients are averaged over the %d replicas, as if "
        "one process trained on each batch. If it scales losses itself, make it use "
        "num_replicas_in_sync; then gradients are added up.",
        name,
        replicas,
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
