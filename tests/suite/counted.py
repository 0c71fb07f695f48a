"""A model that counts how often it was trained on each row, and a callback that kills a task."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow.testing.deaths import kill_task

if TYPE_CHECKING:
    from gridflow._training.context import TrainingContext

__all__ = ["counting_model", "killing_callback", "times_trained"]

#: Iterations of a loop that keeps a step busy on any machine.
_TURNS: Final = 20_000
#: How long it takes until a scheduled step is running.
_UNDER_WAY_SECONDS: Final = 0.05
#: No update for this long means that none is in progress; a partial one would be counted wrongly.
_REST_SECONDS: Final = 0.01
_LOOKS: Final = 500


def counting_model(ctx: TrainingContext, keras: Any, rows: int, *, slow: bool) -> Any:
    """Return a compiled model in which each update for a row subtracts one from the row's weight.

    Parameters
    ----------
    ctx : TrainingContext
    keras : module
        ``keras``, or ``tf_keras``.
    rows : int
        Number of rows; row n is the n-th unit vector.
    slow : bool
        Whether a step keeps running for a while after it has updated the model.
    """
    import tensorflow as tf

    class Sum(keras.losses.Loss):  # type: ignore[misc]
        def call(self, _: Any, p: Any) -> Any:
            return p

    def lasting(_: Any, p: Any) -> Any:
        size = tf.reduce_sum(p)
        return tf.while_loop(
            lambda i, _: i < _TURNS if slow else False,
            lambda i, so_far: (i + 1, tf.sin(so_far)),
            [0, size],
        )[1]

    with ctx.strategy.scope():
        kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((rows,)), kernel])
        model.compile(keras.optimizers.SGD(1.0), Sum(reduction="sum"), metrics=[lasting])
    return model


def times_trained(model: Any) -> list[int]:
    """Return how often the model was trained on each row."""
    times: list[int] = (-model.get_weights()[0][:, 0]).round().astype(int).tolist()
    return times


def killing_callback(ctx: TrainingContext, keras: Any, victim: str | None, batch: int) -> Any:
    """Return a callback that kills a task once, during the given batch; with None, it does nothing.

    The task dies between updates, while a slow model's steps keep running.
    """
    if victim is None:
        return keras.callbacks.Callback()
    task = victim

    class Killing(keras.callbacks.Callback):  # type: ignore[misc]
        done = ctx.generation > 0

        def on_train_batch_begin(self, number: int, logs: Any = None) -> None:
            if number == batch and not self.done:
                self.done = True
                threading.Timer(_UNDER_WAY_SECONDS, self.kill).start()

        def kill(self) -> None:
            before = None
            for _ in range(_LOOKS):
                now = int(self.model.optimizer.iterations.numpy()), times_trained(self.model)
                if now == before:
                    break
                before = now
                time.sleep(_REST_SECONDS)
            kill_task(ctx, task)

    return Killing()
