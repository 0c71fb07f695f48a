"""Tools for probes of Keras on TensorFlow: stand-ins, with which nothing runs.

Running an operation would start TensorFlow's eager context, after which a
MultiWorkerMirroredStrategy can't be created and devices can't be configured.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable


class StepMadeError(Exception):
    """Raised by a probe's step, because the code after it would run operations."""


def waits_for(operation: Any, other: Any) -> bool:
    """Return whether an operation of a graph runs only after another."""
    seen, left = set(), [operation]
    while left:
        each = left.pop()
        if each is other:
            return True
        if each not in seen:
            seen.add(each)
            left += [*(tensor.op for tensor in each.inputs), *each.control_inputs]
    return False


def model(**attributes: Any) -> Any:
    """Return a stand-in for a model while Keras makes a function of its steps."""
    made = {
        "run_eagerly": True,
        "jit_compile": False,
        "steps_per_execution": 1,
        "unrolled_steps_per_execution": 1,
        "distribute_strategy": strategy(1),
        "_autoconvert_optionals": lambda step: step,
    }
    return SimpleNamespace(**(made | attributes))


def strategy(replicas: int) -> Any:
    """Return a stand-in for a strategy that runs a step immediately."""

    def run(step: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        return step(*args, **(kwargs or {}))

    return SimpleNamespace(run=run, num_replicas_in_sync=replicas)


class Batches(tf.data.Iterator):  # type: ignore[misc]
    """An iterator of one placeholder that records whether its end was checked."""

    element_spec = _type_spec = tf.TensorSpec([1], tf.float32)

    def __init__(self) -> None:
        self.batch = tf.compat.v1.placeholder(tf.float32, [1])
        self.is_asked = False

    def get_next(self) -> Any:
        """Return the batch."""
        return self.batch

    def __next__(self) -> Any:
        """Return the batch."""
        return self.batch

    def get_next_as_optional(self) -> Any:
        """Return an optional that is checked first and then holds the batch."""
        optional = tf.experimental.Optional.from_value(self.batch)
        batches = self

        class Asked(type(optional)):  # type: ignore[misc]
            def has_value(self, name: str | None = None) -> bool:
                del name
                batches.is_asked = True
                return True

        optional.__class__ = Asked
        return optional
