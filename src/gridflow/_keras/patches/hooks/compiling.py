"""Says what is wrong with a model when it is compiled, instead of after its training or in it.

A model is sent to the driver as a ``.keras`` file. A custom class needs ``get_config()`` if its
constructor has arguments that can't be written to such a file; Keras would report this only after
training.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras import group, runtime
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Classes that were reported.
_said: Final[set[type]] = set()


def hook(
    base: Any, flavour: str, check: Callable[[Any, Mapping[str, Any]], None] | None = None
) -> Hook:
    """Return the hook.

    `base`: The class whose ``compile`` models inherit.
    `flavour`: The Keras package.
    `check`: Called with a model and what it was compiled with.
    """

    def compiled(compile_: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_(self, *args, **kwargs)
        if check is not None:
            check(self, kwargs)
        if runtime.present() is not None:
            _look_at(self, flavour)
        return result

    return Hook(
        "what is wrong with a model is said when it is compiled",
        lambda: wrap(base, "compile", compiled, Layer.CHECK),
    )


def check_xla(model: Any, options: Mapping[str, Any]) -> None:
    """Reject XLA if it would have to sum gradients of several replicas of this process on CPUs.

    Raises `InvalidArgument`: There are several replicas, on CPUs.
    """
    strategy = model.distribute_strategy
    replicas = 1 if group.is_of(strategy) else strategy.num_replicas_in_sync
    # TensorFlow's default strategy can't name its devices.
    if not options.get("jit_compile") or replicas == 1:
        return
    if any("CPU" in device for device in getattr(strategy.extended, "worker_devices", ())):
        raise InvalidArgument(
            f"jit_compile=True isn't supported with {replicas} replicas on CPUs: there XLA has no "
            "operation to add up their gradients. Leave jit_compile out (Keras's 'auto' compiles "
            "where possible), or use GPUs."
        )


def check_optimizer(model: Any, options: Mapping[str, Any]) -> None:
    """Reject an optimizer that was created outside the model's scope.

    Raises `InvalidArgument`: It belongs to another strategy.
    """
    del options
    made_for = getattr(model.optimizer, "_distribution_strategy", None)
    strategy = model.distribute_strategy
    if made_for is not None and made_for is not strategy and strategy.num_replicas_in_sync > 1:
        raise InvalidArgument(
            "the optimizer was created outside the strategy's scope, but the model inside it. "
            f"Create {type(model.optimizer).__name__} and compile inside, too: with "
            "ctx.strategy.scope(): model = …; model.compile(…)."
        )


def _look_at(model: Any, flavour: str) -> None:
    keras, kind = sys.modules[flavour], type(model)
    owner = next(each for each in kind.__mro__ if "get_config" in vars(each))
    # A custom get_config is trusted, as is that of a functional model.
    if kind in _said or not issubclass(keras.Model, owner):
        return
    try:
        # Not the model's: tf_keras returns an empty config there, with which the driver fails.
        keras.layers.Layer.get_config(model)
    except NotImplementedError:
        _said.add(kind)
        print(  # noqa: T201 (into the task's log)
            f"gridflow: a {kind.__name__} can't be returned from the function, because Keras "
            "can't save its constructor's arguments. Add get_config() to the class (see "
            f"{flavour}.Model), or return what you need, such as model.get_weights().",
            flush=True,
        )
