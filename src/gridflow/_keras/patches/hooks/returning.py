"""Warns about models that can't be returned from a training function, when they are compiled.

A model is sent to the driver as a ``.keras`` file. A custom class needs ``get_config()`` if its
constructor has arguments that can't be written to such a file; Keras would report this only after
training.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

#: Classes that were reported.
_said: Final[set[type]] = set()


def hook(base: Any, flavour: str) -> Hook:
    """Return the hook.

    `base`: The class whose ``compile`` models inherit.
    `flavour`: The Keras package.
    """

    def install() -> None:
        def look(compile_: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            result = compile_(self, *args, **kwargs)
            _look_at(self, flavour)
            return result

        wrap(base, "compile", look, Layer.CHECK)

    return Hook("a model that can't be returned is named before it is trained", install)


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
