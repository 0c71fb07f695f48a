"""Gives the group's strategy to programs that make a ``MultiWorkerMirroredStrategy``."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from gridflow._keras import group
from gridflow._keras.group.collective import CollectiveExchange
from gridflow._keras.group.strategy import GroupStrategy
from gridflow._keras.patches import private_parts
from gridflow._spec.cluster import TRAINING_ROLES

_MARK: Final = "_gridflow_redirected"
#: The strategy of this process, once there is one.
_made: list[GroupStrategy] = []


def use(strategy: GroupStrategy) -> None:
    """Give programs this strategy."""
    _made[:] = [strategy]


def redirect() -> None:
    """Make TensorFlow's class return the group's strategy.

    Where there is none yet, it exchanges values through TensorFlow's collective operations.
    """
    kind: Any = tf.distribute.MultiWorkerMirroredStrategy
    if not getattr(kind, _MARK, False):
        private_parts.never_convert("gridflow._keras")
        kind.__new__ = _new
        setattr(kind, _MARK, True)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    # Python calls __init__ of what is returned, if it is an instance of cls.
    if not cls.__module__.startswith("tensorflow."):
        return object.__new__(cls)
    if not _made:
        given = args[0] if args else kwargs.get("cluster_resolver")
        resolver = given or tf.distribute.cluster_resolver.TFConfigClusterResolver()
        ranks = _ranks(resolver)
        if ranks == 1 or has_several_devices():
            return object.__new__(cls)
        for make, wanted in group.offered:
            if given is None and ranks == wanted:
                group.offered.clear()  # it makes TensorFlow's
                return make()
        use(through_tensorflow(tensorflows(*args, **kwargs)))
    return _made[0]


def tensorflows(*args: Any, **kwargs: Any) -> Any:
    """Return a strategy of TensorFlow's own."""
    kind: Any = tf.distribute.MultiWorkerMirroredStrategy
    own = object.__new__(kind)
    kind.__init__(own, *args, **kwargs)
    return own


def through_tensorflow(own: Any, wire: Any = None, most: int = 0) -> GroupStrategy:
    """Return the strategy of a group that exchanges values as TensorFlow's strategy would.

    `own`: TensorFlow's, with one device in each process.
    `wire`: The type in which gradients are exchanged.
    `most`: Bytes that travel as one tensor; 0: any number.
    """
    return GroupStrategy.of(CollectiveExchange(own, wire, most), own.cluster_resolver)


def has_several_devices() -> bool:
    """Return whether this process has several GPUs. Starts no context."""
    return len(tf.config.list_physical_devices("GPU")) > 1


def _ranks(resolver: Any) -> int:
    """Return how many tasks train together; 1 if this one trains alone."""
    tasks = resolver.cluster_spec().as_dict() if resolver.task_type in TRAINING_ROLES else {}
    return max(1, sum(len(tasks.get(role, [])) for role in TRAINING_ROLES))
