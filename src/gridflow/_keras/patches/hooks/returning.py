"""Models that a training function couldn't return, said when they are compiled.

A model goes to the driver as a ``.keras`` file. That of a class of one's own needs ``get_config()``
where its constructor takes what can't be written into one; Keras would say so after the training.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

#: Classes of which it was said.
_said: Final[set[type]] = set()


def hook(base: Any, flavour: str) -> Hook:
    """Return the hook.

    Parameters
    ----------
    base : type
        Whose ``compile`` models inherit.
    flavour : str
        Package of Keras.
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
    # A get_config of one's own is trusted, as is that of a functional model.
    if kind in _said or not issubclass(keras.Model, owner):
        return
    try:
        # Not the model's: tf_keras makes an empty one there, which the driver fails on.
        keras.layers.Layer.get_config(model)
    except NotImplementedError:
        _said.add(kind)
        print(  # noqa: T201 (into the task's log)
            f"gridflow: a {kind.__name__} can't be returned from the function, as it can't be "
            "saved: its constructor takes what Keras can't write into a file. Give the class "
            f"get_config(), see {flavour}.Model, or return what you need of it, such as "
            "model.get_weights().",
            flush=True,
        )
