"""Keras 3 variables that are split into shards on several parameter servers.

If the strategy has a partitioner, TensorFlow creates a ``ShardedVariable`` for a Keras variable.
Keras 3 doesn't support it: gradients and optimizers need the individual shards, and an embedding
would fetch its whole table to look up a few rows.
"""

from __future__ import annotations

from typing import Any, Final

from gridflow._keras.patches import private_parts

_SHARDS: Final = "_gridflow_shards"


def shards_of(variable: Any) -> list[Any] | None:
    """Return the shards of a Keras variable as Keras variables, or None if it has none."""
    natives = private_parts.shards(variable)
    if natives is None:
        return None
    known: list[Any] | None = getattr(variable, _SHARDS, None)
    if known is None:
        import keras

        known = [
            keras.Variable(shard, name=f"{variable.name}_part_{index}")
            for index, shard in enumerate(natives)
        ]
        # Always the same objects: an optimizer finds its slots by the variable.
        setattr(variable, _SHARDS, known)
    return known


def trainable_variables(model: Any) -> list[Any]:
    """Return the trainable weights of a model, with shards in place of sharded variables.

    For custom training loops under ``parameter_server`` with a ``variable_partitioner``: build the
    optimizer with these, and compute the gradients of their values.

    Parameters
    ----------
    model : keras.Model
        A built Keras 3 model.

    Examples
    --------
    >>> def step(model, loss_of, batch):
    ...     weights = trainable_variables(model)
    ...     with tf.GradientTape() as tape:
    ...         loss = loss_of(batch)
    ...     gradients = tape.gradient(loss, [weight.value for weight in weights])
    ...     model.optimizer.apply_gradients(zip(gradients, weights))
    """
    found: list[Any] = []
    for weight in model.trainable_weights:
        found += shards_of(weight) or [weight]
    return found
