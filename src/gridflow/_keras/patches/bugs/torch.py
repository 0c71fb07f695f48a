"""Patches for Keras 3 on torch: among them for a Keras that itself exchanges between processes.

Keras 3.15 ignores groups. From 3.16 on it wraps each model in DistributedDataParallel, and sums the
metrics in each step. gridflow already does both, also for custom loops, and for ranks that evaluate
different numbers of steps. So gradients would be exchanged twice, sums of metrics would count once
for each rank, and ranks would wait for others that have no step left.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any, Final

import torch
from keras.src import api_export
from keras.src.backend.torch import optimizers
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from gridflow._collectives.tensors import is_of_several
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.bugs import building, dict_inputs, weights
from gridflow._keras.patches.registry import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator


TRAINER: Final = private_parts.trainer()


class _ExchangesError(Exception):
    """Raised if Keras would exchange something with other processes."""


@contextlib.contextmanager
def _refusing(owner: Any, name: str) -> Iterator[None]:
    """Make a function raise an error when it is called, instead of waiting for others."""
    original = getattr(owner, name)

    def refused(*_: Any, **__: Any) -> None:
        raise _ExchangesError

    setattr(owner, name, refused)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Model(TRAINER):  # type: ignore[misc, valid-type]
    """A trainer without layers."""

    metrics = ()

    def __init__(self) -> None:
        super().__init__()
        self.run_eagerly, self.jit_compile = True, False

    @property
    def metrics_variables(self) -> list[Any]:
        return [_Counter]


class _Counter:
    """A variable of a metric."""

    value = torch.zeros(1)


def _exchanges() -> bool:
    """Return whether a model is wrapped to average gradients, or its metrics are added up."""
    model = _Model()
    try:
        with (
            _refusing(DistributedDataParallel, "__init__"),
            _refusing(distributed, "all_reduce"),
        ):
            TRAINER.make_train_function(model, force=True)
            TRAINER.get_metrics_result(model)
    except _ExchangesError:
        return True
    return False


def _patch() -> None:
    wrapping = "_initialize_ddp"
    private_parts.part(TRAINER, wrapping)
    setattr(TRAINER, wrapping, lambda _: None)
    TRAINER.get_metrics_result = private_parts.base_trainer().get_metrics_result


def fix() -> Patch:
    return Patch(
        "models are exchanged in each step",
        "keras",
        "gradients are averaged twice, buffers taken from the first process, and sums of metrics "
        "count once for each process; processes with fewer steps to test are waited for forever",
        _exchanges,
        _patch,
        is_of_several,
    )


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
    fix(),
    Patch(
        "optimizers are saved by the names that all backends know",
        "keras",
        "loading a compiled model imports torch everywhere, which may crash TensorFlow",
        _have_other_names,
        _patch_names,
    ),
)
