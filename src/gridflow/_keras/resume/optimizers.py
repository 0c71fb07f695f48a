"""Optimizers that a model has beside the one it is compiled with, as the two of a GAN.

Keras builds them when the model's own ``train_step`` uses them first, for some of its variables.
A checkpoint says for which, so that they can be built, and restored, before that.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gridflow._keras.patches import private_parts
from gridflow._keras.results import is_tensorflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def others(model: Any, flavour: str) -> list[Any]:
    """Return the optimizers in a model's attributes, and in those of its submodels."""
    kind = sys.modules[flavour].optimizers.Optimizer
    found: list[Any] = [getattr(model, "optimizer", None)]
    for layer in private_parts.layers(model):
        for value in list(vars(layer).values()):
            for each in _items(value):
                if isinstance(each, kind) and not any(each is one for one in found):
                    found.append(each)
    return found[1:]


def places(model: Any, optimizer: Any) -> list[int]:
    """Return which of the model's variables an optimizer is built for."""
    if not private_parts.is_optimizer_built(optimizer):
        return []
    of_key = {private_parts.key_of(optimizer, each): i for i, each in enumerate(model.variables)}
    keys = private_parts.keys_of(optimizer)
    return [of_key[key] for key in keys] if all(key in of_key for key in keys) else []


def build(model: Any, flavour: str, built: Sequence[Sequence[int]]) -> None:
    """Build the optimizers for these of the model's variables."""
    variables = model.variables
    with model.distribute_strategy.scope() if is_tensorflow(model) else nullcontext():
        for optimizer, there in zip(others(model, flavour), built, strict=False):
            if there and not private_parts.is_optimizer_built(optimizer):
                optimizer.build([variables[place] for place in there])


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    else:
        yield value
