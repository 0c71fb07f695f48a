"""What both flavours of Keras can't compile."""

from __future__ import annotations

from typing import Any

from gridflow.errors import InvalidArgument


def check_xla(strategy: Any) -> None:
    """Refuse XLA where the gradients of several replicas on CPUs would have to be summed in it.

    Raises
    ------
    InvalidArgument
        The strategy has several replicas, and they lie on CPUs.
    """
    devices = getattr(strategy.extended, "worker_devices", ())
    if strategy.num_replicas_in_sync > 1 and any("CPU" in device for device in devices):
        raise InvalidArgument(
            f"jit_compile=True can't work with {strategy.num_replicas_in_sync} replicas on CPUs: "
            "XLA has no operation there that adds up their gradients. Leave jit_compile out "
            "(Keras's 'auto' compiles where it can), or use GPUs."
        )


def check_optimizer(optimizer: Any, strategy: Any) -> None:
    """Refuse an optimizer that was made outside of the scope in which the model was.

    Raises
    ------
    InvalidArgument
        It belongs to another strategy.
    """
    made_for = getattr(optimizer, "_distribution_strategy", None)
    if made_for is not None and made_for is not strategy and strategy.num_replicas_in_sync > 1:
        raise InvalidArgument(
            f"the optimizer was made outside of the strategy's scope, the model inside: make "
            f"{type(optimizer).__name__} inside, too, and compile there: "
            "with ctx.strategy.scope(): model = …; model.compile(…)."
        )
