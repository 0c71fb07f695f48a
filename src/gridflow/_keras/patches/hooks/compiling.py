"""Checks for what neither flavour of Keras can compile."""

from __future__ import annotations

from typing import Any

from gridflow._keras import group
from gridflow.errors import InvalidArgument


def check_xla(strategy: Any) -> None:
    """Reject XLA if it would have to sum gradients of several replicas on CPUs.

    Raises `InvalidArgument`: The strategy has several replicas, on CPUs.
    """
    if (
        group.is_of(strategy) or strategy.num_replicas_in_sync == 1
    ):  # TensorFlow's default strategy can't name its devices
        return
    devices = getattr(strategy.extended, "worker_devices", ())
    if any("CPU" in device for device in devices):
        raise InvalidArgument(
            f"jit_compile=True isn't supported with {strategy.num_replicas_in_sync} replicas on "
            "CPUs: there XLA has no operation to add up their gradients. Leave jit_compile out "
            "(Keras's 'auto' compiles where possible), or use GPUs."
        )


def check_optimizer(optimizer: Any, strategy: Any) -> None:
    """Reject an optimizer that was created outside the model's scope.

    Raises `InvalidArgument`: It belongs to another strategy.
    """
    made_for = getattr(optimizer, "_distribution_strategy", None)
    if made_for is not None and made_for is not strategy and strategy.num_replicas_in_sync > 1:
        raise InvalidArgument(
            "the optimizer was created outside the strategy's scope, but the model inside it. "
            f"Create {type(optimizer).__name__} and compile inside, too: with "
            "ctx.strategy.scope(): model = …; model.compile(…)."
        )
