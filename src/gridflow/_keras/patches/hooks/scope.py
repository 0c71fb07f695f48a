"""Rejects models that a process of a group would train by itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf

from gridflow._keras import runtime
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

_SERVERS: Final = tf.distribute.ParameterServerStrategy
_WORKERS: Final = tf.distribute.MultiWorkerMirroredStrategy
_INSIDE: Final = "with ctx.strategy.scope(): model = …; model.compile(…)"


def hook(cls: Any, *others: Callable[[], None]) -> Hook:
    """Return the hook that rejects a flavour's models created outside the group's strategy.

    `cls`: The model class, with ``fit`` and ``train_on_batch``.
    `others`: What else is checked before training.
    """

    def checked(train: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        check(model)
        for other in others:
            other()
        return train(model, *args, **kwargs)

    def install() -> None:
        for name in ("fit", "train_on_batch"):
            wrap(cls, name, checked, Layer.CHECK)

    return Hook("a model that was made outside of the group's strategy isn't trained", install)


def check(model: Any) -> None:
    """Reject a model that isn't the group's, unless it may be trained alone.

    Raises `InvalidArgument`: The model, or one of its layers, was created outside the group's
        strategy.
    """
    group = runtime.group()
    if group is None or not _is_shared(group) or runtime.is_alone():
        return
    strategy = model.distribute_strategy
    if not _is_as_wide(strategy, group):
        raise InvalidArgument(
            f"this model was created outside the strategy's scope ({type(group).__name__}), "
            f"{_alone_would(group)}. Create and compile it in the function, {_INSIDE}; also a "
            "model that was created in the driver. To train it in this process alone, use: with "
            "ctx.alone(): model.fit(…)."
        )
    if strategy.num_replicas_in_sync > 1:
        _check_weights(model, strategy)


def _is_shared(strategy: Any) -> bool:
    return strategy.num_replicas_in_sync > 1 or isinstance(strategy, _SERVERS)


def _is_as_wide(strategy: Any, group: Any) -> bool:
    """Return whether a strategy, possibly the user's own, spans the whole group."""
    return all(
        isinstance(strategy, kind) for kind in (_SERVERS, _WORKERS) if isinstance(group, kind)
    ) and bool(strategy.num_replicas_in_sync == group.num_replicas_in_sync)


def _alone_would(group: Any) -> str:
    if isinstance(group, _SERVERS):
        return "so the chief would train it alone, without the workers"
    if isinstance(group, _WORKERS):
        return "so each process would train a separate model"
    return f"so only one of {group.num_replicas_in_sync} devices would train it"


def _check_weights(model: Any, strategy: Any) -> None:
    for weight in itertools.chain.from_iterable(map(_weights, private_parts.layers(model))):
        native = getattr(weight, "_value", weight)
        if native is not None and not strategy.extended.variable_created_in_scope(native):
            raise InvalidArgument(
                f"the weight {getattr(weight, 'path', weight.name)!r} was created outside the "
                "strategy's scope, but the model inside it. Create all of its layers inside, "
                f"{_INSIDE}."
            )


def _weights(layer: Any) -> list[Any]:
    """Return the trainable weights of a model or layer that exist already."""
    try:
        return list(layer.trainable_weights)
    except ValueError:  # an unbuilt model of tf_keras; its layers may be built
        return []
