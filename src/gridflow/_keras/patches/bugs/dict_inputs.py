"""The patch for models with a dict of inputs, which Keras 3 takes in the order of sorted names.

So a column that a model doesn't name takes the place of one that it does. From 3.16 on, Keras
ignores it, too.
"""

from __future__ import annotations

import logging
from typing import Any, Final
from weakref import WeakSet

import keras
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Patch

_log = logging.getLogger(__name__)
#: The models whose log has it.
_told: Final[WeakSet[Any]] = WeakSet()


def _probe() -> Any:
    # Without names, Keras would number those of the user's models differently.
    x = keras.Input((1,), name="x")
    return keras.Model({"x": x}, x, name="probe")


def _others_take_the_place() -> bool:
    sizes = {"before x": 2, "x": 1}
    given = {name: keras.KerasTensor((3, size), name=name) for name, size in sizes.items()}
    return bool(_probe().compute_output_spec(given).shape[-1] != sizes["x"])


def _by_name(model: Any, given: Any) -> Any:
    """Return what a model names of a dict."""
    wanted = model.input
    if isinstance(wanted, dict) and isinstance(given, dict) and wanted.keys() < given.keys():
        return {name: given[name] for name in wanted}
    return given


def _say_what_is_ignored(model: Any, given: Any) -> None:
    if model not in _told:
        _told.add(model)
        others = given.keys() - model.input.keys()
        _log.warning(
            "model %r has no input for %s, which it ignores; its inputs are %s. Leave others out "
            "of the data.",
            model.name,
            ", ".join(map(repr, sorted(others))),
            ", ".join(map(repr, sorted(model.input))),
        )


def _patch() -> None:
    functional = type(_probe())

    def call(
        original: Any, self: Any, inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any
    ) -> Any:
        named = _by_name(self, inputs)
        if named is not inputs:
            _say_what_is_ignored(self, inputs)
        masks = None if mask is None else _by_name(self, mask)
        return original(self, named, training=training, mask=masks, **kwargs)

    def compute_output_spec(
        original: Any, self: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return original(self, _by_name(self, inputs), *args, **kwargs)

    wrap(functional, "call", call, Layer.BUG)
    wrap(functional, "compute_output_spec", compute_output_spec, Layer.BUG)


def fix() -> Patch:
    return Patch(
        "inputs by name",
        "keras",
        "a model with a dict of inputs trains on another column if the data have one more",
        _others_take_the_place,
        _patch,
    )
