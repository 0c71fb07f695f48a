"""Models that a process would train for itself, although it belongs to a group that trains one."""

from __future__ import annotations

import itertools
from typing import Any, Final

import tensorflow as tf

from gridflow._keras import runtime
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow.errors import InvalidArgument

_SERVERS: Final = tf.distribute.ParameterServerStrategy
_WORKERS: Final = tf.distribute.MultiWorkerMirroredStrategy
_INSIDE: Final = "with ctx.strategy.scope(): model = …; model.compile(…)"


def hook(cls: Any) -> Hook:
    """Return the hook for a flavour's models, by which those of nobody's strategy aren't trained.

    Parameters
    ----------
    cls : type
        Of models, with ``fit`` and ``train_on_batch``.
    """

    def install() -> None:
        for name in ("fit", "train_on_batch"):
            wrap(cls, name, _train_the_groups, Layer.CHECK)

    return Hook("a model that was made outside of the group's strategy isn't trained", install)


def _train_the_groups(train: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    check(model)
    return train(model, *args, **kwargs)


def check(model: Any) -> None:
    """Refuse a model that isn't the group's, unless it may be trained alone.

    Raises
    ------
    InvalidArgument
        It, or a layer of it, was made outside of the group's strategy.
    """
    group = runtime.group()
    if group is None or not _is_shared(group) or runtime.is_alone():
        return
    strategy = model.distribute_strategy
    if not _is_as_wide(strategy, group):
        raise InvalidArgument(
            f"this model was made outside of the strategy's scope ({type(group).__name__}), "
            f"{_alone_would(group)}. Make and compile it in the function, {_INSIDE}; a model that "
            "was made in the driver, too. To train it by this process alone, say so: "
            "with ctx.alone(): model.fit(…)."
        )
    if strategy.num_replicas_in_sync > 1:
        _check_weights(model, strategy)


def _is_shared(strategy: Any) -> bool:
    return strategy.num_replicas_in_sync > 1 or isinstance(strategy, _SERVERS)


def _is_as_wide(strategy: Any, group: Any) -> bool:
    """Return whether a strategy, which may be one of the user's own, trains on all of a group."""
    return all(
        isinstance(strategy, kind) for kind in (_SERVERS, _WORKERS) if isinstance(group, kind)
    ) and bool(strategy.num_replicas_in_sync == group.num_replicas_in_sync)


def _alone_would(group: Any) -> str:
    if isinstance(group, _SERVERS):
        return "so the chief would train it alone, and the workers nothing"
    if isinstance(group, _WORKERS):
        return "so each process would train a model of its own"
    return f"so one device of {group.num_replicas_in_sync} would train it"


def _check_weights(model: Any, strategy: Any) -> None:
    for weight in itertools.chain.from_iterable(map(_weights, private_parts.layers(model))):
        native = getattr(weight, "_value", weight)
        if native is not None and not strategy.extended.variable_created_in_scope(native):
            raise InvalidArgument(
                f"the weight {getattr(weight, 'path', weight.name)!r} was made outside of the "
                f"strategy's scope, the model inside: make all of its layers inside, {_INSIDE}."
            )


def _weights(layer: Any) -> list[Any]:
    """Return the trainable weights of a model or layer, as far as they were made."""
    try:
        return list(layer.trainable_weights)
    except ValueError:  # a model of tf_keras that isn't built; its layers may be
        return []
