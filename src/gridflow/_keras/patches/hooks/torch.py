"""The hooks for Keras 3 on torch, where several processes train one model.

Gradients are averaged before they are applied, which for batches of equal size gives the gradients
of the global batch. The state of metrics is summed at the end of an epoch or evaluation.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

import keras
from gridflow._collectives import tensors as exchange
from gridflow._keras.neutral import numbers
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.bugs import shares
from gridflow._keras.patches.hooks import compiling, fits, gradients, group, position, saving
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TRAINER: Final = private_parts.trainer()
FIT: Final = group.FIT


def average(tensors: Sequence[Any]) -> list[Any]:
    """Return the tensors' means over all ranks. All must call it, with the same shapes."""
    return [each / exchange.EXCHANGE.size for each in exchange.add_up(tensors)]


def sums(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sums of arrays over all ranks. All must call it, with the same shapes."""
    found = exchange.add_up([keras.ops.convert_to_tensor(each) for each in arrays])
    return [np.array(each.cpu()) for each in found]


def averaging() -> Callable[[Sequence[Any]], list[Any]] | None:
    """Return the function that averages over ranks with separate states; None if alone."""
    return average if exchange.is_of_several() else None


def _broadcast(variables: list[Any]) -> None:
    if exchange.EXCHANGE.is_joining:
        return
    with torch.no_grad():
        for variable in variables:
            values = variable.value.data
            values.copy_(exchange.of_chief(values.reshape(-1)).reshape(values.shape))


class _Ranks:
    """All ranks of the process group."""

    has_summed = False
    averages = True

    @property
    def size(self) -> int:
        return exchange.EXCHANGE.size

    def mean_gradients(self, grads: Sequence[Any]) -> list[Any]:
        """Return the means of gradients over the rows of all ranks."""
        found = list(grads)
        there = [place for place, grad in enumerate(grads) if grad is not None]
        mine, part = [grads[place] for place in there], shares.current()
        means = average(mine) if part is None or not mine else exchange.mean(mine, int(part.rows))
        for place, mean in zip(there, means, strict=True):
            found[place] = mean
        return found

    @contextlib.contextmanager
    def after_sum(self) -> Iterator[None]:
        """Let an optimizer inside another one take the gradients as they are."""
        self.has_summed = True
        try:
            yield
        finally:
            self.has_summed = False


def _part_of(batch: Any) -> shares.ReplicaPart:
    first = next(each for each in keras.tree.flatten(batch) if each is not None)
    rows = keras.ops.convert_to_tensor(float(first.shape[0]), "float32")

    def together(numbers: Sequence[Any]) -> Any:
        return exchange.add_up([torch.stack([each.to(rows) for each in numbers])])[0]

    return shares.ReplicaPart(rows, together)


def _average() -> None:
    """Average over rows: each rank's part of a batch is known in training.

    Evaluation has unequal steps.
    """

    def make_train_function(make: Any, self: Any, force: bool = False) -> None:
        known = self.train_function
        make(self, force)
        function = self.train_function
        if function is known:
            return

        def of_part(data: Any) -> Any:
            with shares.of(_part_of(data)):
                return function(data)

        self.train_function = of_part

    wrap(TRAINER, "make_train_function", make_train_function, Layer.BUG)
    ranks = _Ranks()
    gradients.install(lambda: ranks)


def _add_up_logs() -> None:
    def of_all(original: Any, self: Any, logs: Any) -> Any:
        if not logs and position.has_ended(self):
            logs = self.get_metrics_result()
        variables = self.metrics_variables
        own = [variable.value.detach().clone() for variable in variables]
        if own:
            for variable, total in zip(variables, exchange.add_up(own), strict=True):
                variable.assign(total)
        try:
            found = original(self, logs)
            if found is not logs:
                # Some results are views of variables, whose own values are restored.
                found = {name: _copied(value) for name, value in found.items()}
        finally:
            for variable, value in zip(variables, own, strict=True):
                variable.assign(value)
        if found is not logs:
            return found
        # A custom step may return any logs.
        mine = numbers(logs)
        if not mine:
            return logs
        device = own[0].device if own else "cpu"
        means = average([torch.tensor(list(mine.values()), device=device)])[0]
        return {**logs, **dict(zip(mine, means.tolist(), strict=True))}

    wrap(TRAINER, "_get_metrics_result_or_logs", of_all, Layer.ROUTE)


def _copied(value: Any) -> Any:
    return value.detach().clone() if torch.is_tensor(value) else value


def random_states() -> list[np.ndarray]:
    """Return torch's own random states: of the CPU, and of each GPU."""
    return [state.numpy() for state in (torch.get_rng_state(), *torch.cuda.get_rng_state_all())]


def set_random_states(states: Sequence[np.ndarray]) -> None:
    """Set what `random_states` returned, as far as there are GPUs."""
    first, *of_gpus = [torch.from_numpy(state.copy()) for state in states]
    torch.set_rng_state(first)
    for gpu, state in enumerate(of_gpus[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, gpu)


def share_random_states() -> None:
    """Let all ranks draw the chief's random numbers from here on. All must call it.

    Those with fewer rows in a batch have drawn fewer of them.
    """
    device = torch.cuda.is_available()  # a process trains on one, and all have one or none
    states = random_states()[: 1 + device]
    set_random_states([exchange.of_chief(torch.from_numpy(each)).numpy() for each in states])


HOOKS: Final = (
    group.same_weights(TRAINER, _broadcast, exchange.is_of_several),
    Hook("gradients and losses are those of all ranks' rows", _average, exchange.is_of_several),
    Hook("logs are those of all processes", _add_up_logs, exchange.is_of_several),
    # Each rank evaluates alone anyway, and its logs are those of all ranks.
    group.hook(
        TRAINER,
        lambda model, _: contextlib.nullcontext(model._get_metrics_result_or_logs),
        lambda *_: contextlib.nullcontext(),
    ),
    compiling.hook(private_parts.base_trainer(), "keras"),
    fits.hook(TRAINER, keras.callbacks.CallbackList),
    saving.hook(),
)
