"""What Keras 3 lacks on torch: it knows nothing of other processes.

Gradients are averaged before they are applied, which for batches of equal size gives the gradients
of the global batch. The state of metrics is added up when an epoch or an evaluation has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

import torch
from keras.src import api_export
from keras.src.backend.torch import optimizers, trainer
from keras.src.optimizers import loss_scale_optimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer
from torch import distributed

from gridflow.keras.cures import group
from gridflow.keras.fixes import Fix
from gridflow.keras.hooks import group_once
from gridflow.keras.neutral import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_applying: list[bool] = []


def average(tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' means over all ranks. To be called by all, with the same shapes."""
    return [each / distributed.get_world_size() for each in add_up(tensors)]


def add_up(tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' sums over all ranks. To be called by all, with the same shapes."""
    found: list[Any] = [None] * len(tensors)
    groups: dict[Any, list[int]] = {}
    for place, tensor in enumerate(tensors):
        groups.setdefault((tensor.dtype, tensor.device), []).append(place)
    for places in groups.values():
        # One collective for all tensors of a kind.
        flat = torch.cat([tensors[place].detach().reshape(-1) for place in places])
        distributed.all_reduce(flat)
        sizes = [tensors[place].numel() for place in places]
        for place, part in zip(places, flat.split(sizes), strict=True):
            found[place] = part.reshape(tensors[place].shape)
    return found


def averaging() -> Callable[[Sequence[Any]], list[Any]] | None:
    """Return what averages over ranks that each have a state of their own, None without others."""
    return average if _is_group() else None


def _is_group() -> bool:
    return bool(distributed.is_available() and distributed.is_initialized())


def _broadcast(variables: list[Any]) -> None:
    with torch.no_grad():
        for variable in variables:
            distributed.broadcast(variable.value.data, src=0)


def _cure_apply(cls: type) -> None:
    original = cls.apply  # type: ignore[attr-defined]

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if _applying:  # an optimizer inside of another one
            return original(self, grads, trainable_variables)
        grads = list(grads)
        there = [place for place, grad in enumerate(grads) if grad is not None]
        if there:
            means = average([grads[place] for place in there])
            for place, mean in zip(there, means, strict=True):
                grads[place] = mean
        _applying.append(True)
        try:
            return original(self, grads, trainable_variables)
        finally:
            _applying.pop()

    cls.apply = apply  # type: ignore[attr-defined]


def _cure_optimizers() -> None:
    for cls in (BaseOptimizer, loss_scale_optimizer.LossScaleOptimizer):
        _cure_apply(cls)


def _cure_logs() -> None:
    original = trainer.TorchTrainer._get_metrics_result_or_logs

    def _get_metrics_result_or_logs(self: Any, logs: Any) -> Any:
        variables = self.metrics_variables
        own = [variable.value.detach().clone() for variable in variables]
        if own:
            for variable, total in zip(variables, add_up(own), strict=True):
                variable.assign(total)
        try:
            found = original(self, logs)
            if found is not logs:
                # Some results are views of the variables, which get their own values back.
                found = {name: _copied(value) for name, value in found.items()}
        finally:
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)
        if found is not logs:
            return found
        # A step of the user's own says what it likes.
        mine = numbers(logs)
        if not mine:
            return logs
        device = own[0].device if own else "cpu"
        means = average([torch.tensor(list(mine.values()), device=device)])[0]
        return {**logs, **dict(zip(mine, means.tolist(), strict=True))}

    trainer.TorchTrainer._get_metrics_result_or_logs = _get_metrics_result_or_logs


def _copied(value: Any) -> Any:
    return value.detach().clone() if torch.is_tensor(value) else value


def _optimizers() -> dict[type, str]:
    """Return the classes that stand for Keras's own on torch, with the names of those."""
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


def _cure_names() -> None:
    api_export.REGISTERED_OBJS_TO_NAMES.update(_optimizers())


FIT = group.FIT
FIXES = (
    group.building(),
    group.ending(),
    group.same_weights(trainer.TorchTrainer, _broadcast, _is_group),
    Fix(
        "gradients are averaged",
        "keras",
        "each process trains a model of its own",
        _is_group,
        _cure_optimizers,
    ),
    Fix(
        "logs are those of all processes",
        "keras",
        "losses and metrics are those of one process",
        _is_group,
        _cure_logs,
    ),
    Fix(
        "optimizers are saved by the names that all backends know",
        "keras",
        "a compiled model imports torch wherever it is loaded, which TensorFlow may not survive",
        _have_other_names,
        _cure_names,
    ),
    # Each rank tests alone as it is, and its logs are those of all.
    group_once.fix(
        trainer.TorchTrainer,
        lambda model, _: contextlib.nullcontext(model._get_metrics_result_or_logs),
        lambda *_: contextlib.nullcontext(),
    ),
)
