"""Fits that involve all ranks: who writes files, and that all ranks train one model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from gridflow._keras import own_callbacks
from gridflow._keras.results import flavour_of
from gridflow._wire.ranks import FitBegins, FitStands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._wire.commands import ChiefWrites


class Together:
    """The fits of this process in which all ranks train one model, by number.

    Parameters
    ----------
    send : callable
        Sends messages to the driver.
    is_chief : bool
    compares : bool, default True
        Whether weights are the same on all ranks at the end of an epoch.
    """

    def __init__(
        self,
        send: Callable[[FitBegins | FitStands], object],
        *,
        is_chief: bool,
        compares: bool = True,
    ) -> None:
        self._send, self._is_chief, self._compares = send, is_chief, compares
        self._changed = threading.Condition()
        self._taken: dict[int, list[str]] = {}
        self._fit, self._initial_epoch = -1, 0

    def begin(self, callbacks: Sequence[Any], initial_epoch: int) -> list[Any]:
        """Start a fit; return its callbacks, without those that write to the chief's paths.

        A rank that would write asks where the chief writes, which is here already or will be.
        """
        self._fit += 1
        self._initial_epoch = initial_epoch
        paths = own_callbacks.paths_of(callbacks)
        if self._is_chief or paths:
            self._send(FitBegins(self._fit, paths))
        if self._is_chief or not paths:
            return list(callbacks)
        with self._changed:
            self._changed.wait_for(lambda: self._fit in self._taken)
            taken = self._taken.pop(self._fit)
        return own_callbacks.without_writing(callbacks, taken)

    def start(self, model: Any) -> None:
        """Report where callbacks start a fit, which must be the same on all ranks."""
        from gridflow._keras.patches.hooks import position

        epoch = position.initial_epoch(model) or self._initial_epoch
        self._stand(model, int(epoch), starts=True)

    def epoch_ended(self, model: Any, epoch: int) -> None:
        """Report what the model is now, which must be the same on all ranks."""
        self._stand(model, epoch + 1, starts=False)

    def _stand(self, model: Any, epoch: int, *, starts: bool) -> None:
        from gridflow._keras.resume import state

        flavour = flavour_of(model) or "keras"
        told = state.rates(model, flavour), state.sums(model) if self._compares else []
        self._send(FitStands(self._fit, epoch, starts, _updates(model), *told))

    def take(self, told: ChiefWrites) -> None:
        """Receive the chief's paths from the driver, in the receiving thread."""
        with self._changed:
            self._taken[told.fit] = told.paths
            self._changed.notify_all()


def _updates(model: Any) -> int:
    found = getattr(getattr(model, "optimizer", None), "iterations", None)
    # JAX's arrays, which it is with gradient accumulation, are numbers as they are.
    return -1 if found is None else int(found.numpy() if hasattr(found, "numpy") else found)
