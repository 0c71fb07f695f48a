"""Patches for Keras versions that exchange gradients and metrics if torch has a process group.

Keras 3.15 ignores groups. From 3.16 on it wraps each model in DistributedDataParallel, and sums the
metrics in each step. gridflow already does both, also for custom loops, and for ranks that evaluate
different numbers of steps. So gradients would be exchanged twice, sums of metrics would count once
for each rank, and ranks would wait for others that have no step left.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from gridflow._keras.patches import private_parts
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAINER: Final = private_parts.trainer()


def is_group() -> bool:
    """Return whether several processes train one model."""
    return bool(distributed.is_available() and distributed.is_initialized())


class _ExchangesError(Exception):
    """Raised if Keras would exchange something with other processes."""


@contextlib.contextmanager
def _refusing(owner: Any, name: str) -> Iterator[None]:
    """Make a function raise an error when it is called, instead of waiting for others."""
    original = getattr(owner, name)

    def refused(*_: Any, **__: Any) -> None:
        raise _ExchangesError

    setattr(owner, name, refused)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Model(TRAINER):  # type: ignore[misc, valid-type]
    """A trainer without layers."""

    metrics = ()

    def __init__(self) -> None:
        super().__init__()
        self.run_eagerly, self.jit_compile = True, False

    @property
    def metrics_variables(self) -> list[Any]:
        return [_Counter]


class _Counter:
    """A variable of a metric."""

    value = torch.zeros(1)


def _is_wrapped() -> bool:
    """Return whether a model is wrapped to average gradients before its first step."""
    try:
        with _refusing(DistributedDataParallel, "__init__"):
            TRAINER.make_train_function(_Model(), force=True)
    except _ExchangesError:
        return True
    return False


def _patch_wrapping() -> None:
    name = "_initialize_ddp"
    private_parts.part(TRAINER, name)
    setattr(TRAINER, name, lambda _: None)


def _metrics_are_added_up() -> bool:
    """Return whether a model's metrics are summed over all processes in each step."""
    try:
        with _refusing(distributed, "all_reduce"):
            TRAINER.get_metrics_result(_Model())
    except _ExchangesError:
        return True
    return False


def _patch_metrics() -> None:
    TRAINER.get_metrics_result = private_parts.base_trainer().get_metrics_result


PATCHES: Final = (
    Patch(
        "models are wrapped",
        "keras",
        "gradients are averaged twice, and buffers taken from the first process",
        _is_wrapped,
        _patch_wrapping,
        is_group,
    ),
    Patch(
        "metrics are added up in each step",
        "keras",
        "sums of metrics count once for each process, and processes with fewer steps to test are "
        "waited for forever",
        _metrics_are_added_up,
        _patch_metrics,
        is_group,
    ),
)
