"""Patches for Keras 3 on torch."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

from keras.src import api_export
from keras.src.backend.torch import optimizers

from gridflow._keras.patches.bugs import building, dict_inputs, torch_groups, weights
from gridflow._keras.patches.registry import Patch


def _optimizers() -> dict[type, str]:
    """Return torch's replacements for Keras's optimizer classes, with the original names."""
    found = {}
    for info in pkgutil.iter_modules(optimizers.__path__):
        module = importlib.import_module(f"{optimizers.__name__}.{info.name}")
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                name = f"keras.optimizers.{cls.__name__}"
                if api_export.get_symbol_from_name(name) is not None:
                    found[cls] = name
    return found


def _have_other_names() -> bool:
    return any(api_export.get_name_from_symbol(cls) != name for cls, name in _optimizers().items())


def _patch_names() -> None:
    api_export.REGISTERED_OBJS_TO_NAMES.update(_optimizers())


PATCHES: Final = (
    building.fix(),
    dict_inputs.fix(),
    weights.fix(),
    torch_groups.fix(),
    Patch(
        "optimizers are saved by the names that all backends know",
        "keras",
        "loading a compiled model imports torch everywhere, which may crash TensorFlow",
        _have_other_names,
        _patch_names,
    ),
)
