"""Hooks for Keras 3 on other backends than TensorFlow when several processes train one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from keras.src.trainers import epoch_iterator

from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

_SHARES = "_gridflow_shares_weights"
#: The trainer, its build method, and the class that counts the steps of an epoch.
FIT: Final = (*private_parts.building(), epoch_iterator.EpochIterator)


def same_weights(
    cls: type, broadcast: Callable[[list[Any]], None], concerns: Callable[[], bool]
) -> Hook:
    """Return the hook that makes all processes start a fit with the chief's weights.

    Keras leaves this to the user.

    `cls`: The backend's trainer.
    `broadcast`: Sets a list of variables to the chief's values. Called by all ranks.
    `concerns`: Whether there are several processes.
    """

    def install() -> None:
        def fit_from_the_same(fit: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
            # Bypasses Keras's __setattr__, which would track it as a part of the model.
            object.__setattr__(self, _SHARES, broadcast)
            return fit(self, *args, **kwargs)

        def build_and_share(
            build: Any, self: Any, iterator: Any = None, data_batch: Any = None
        ) -> None:
            build(self, iterator=iterator, data_batch=data_batch)
            share = self.__dict__.pop(_SHARES, None)
            if share is not None:
                share(self.variables)

        wrap(cls, "fit", fit_from_the_same, Layer.ROWS)
        wrap(*private_parts.building(), build_and_share, Layer.ROWS)

    return Hook("all begin with the chief's weights", install, concerns)
