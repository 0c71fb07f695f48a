"""A training step that XLA compiles on both sides of the exchange.

XLA can't compile a Python function, which the exchange is. So the step is compiled in two parts: up
to the gradients, and from their means on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def in_two_parts(extended: Any, step: Callable[..., Any], model: Any, batch: Any, rows: Any) -> Any:
    """Make the training step of a Keras model, and return its logs.

    `extended`: Of the group's strategy, `gridflow._keras.group.strategy`.
    `step`: The model's own, which takes a batch and applies gradients once, at its end.
    `model`: Built, with its optimizer.
    `rows`: How many this rank has in it.
    """
    optimizer = model.optimizer

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def gradients(batch: Any) -> Any:
        asked: list[list[Any]] = []

        def note(grads: Sequence[Any], trainable_variables: Any = None) -> None:
            del trainable_variables
            asked.append(list(grads))

        vars(optimizer)["apply"] = note  # bypasses Keras's __setattr__
        try:
            with extended.exchange.compiling():
                logs = step(batch)
        finally:
            del vars(optimizer)["apply"]
        if len(asked) != 1:
            raise InvalidArgument(
                f"jit_compile=True is for steps that apply gradients once, and {type(model)} does "
                f"it {len(asked)} times. Leave jit_compile out."
            )
        return logs, asked[0]

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def update(grads: Sequence[Any]) -> None:
        with extended.after_sum():
            optimizer.apply(grads, model.trainable_variables)

    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    logs, grads = gradients(batch)
    update(extended.exchange.mean(grads, rows))
    return logs
