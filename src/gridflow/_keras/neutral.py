"""A callback for both flavours of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gridflow._keras.patches.private_parts import Answers
from gridflow._keras.results import flavour_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class NeutralCallback(Answers):
    """Does nothing in every method that Keras 3 and tf_keras call.

    Both call a callback's methods without checking its class, so gridflow's callbacks can be
    created before the model's flavour is known. `flavour` is set in ``set_model``.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: Mapping[str, Any] = {}
        self.flavour = ""

    def set_model(self, model: Any) -> None:
        """Set the model to train, test or predict with."""
        self.model = model
        self.flavour = flavour_of(model) or "keras"

    def set_params(self, params: Mapping[str, Any] | None) -> None:
        """Set ``epochs``, ``steps`` and ``verbose``."""
        self.params = params or {}

    def has_own(self, *names: str) -> bool:
        """Return whether one of these methods is overridden."""
        return any(getattr(type(self), n) is not getattr(NeutralCallback, n) for n in names)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_test_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_test_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_predict_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_predict_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_predict_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    on_batch_begin = on_train_batch_begin
    on_batch_end = on_train_batch_end


def numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return the logs that are single numbers, as floats."""
    found: dict[str, float] = {}
    for name, value in (logs or {}).items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue
    return found
