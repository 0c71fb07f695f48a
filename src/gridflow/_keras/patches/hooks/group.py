"""Hooks for Keras 3 on other backends than TensorFlow when several processes train one model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from keras.src.trainers import epoch_iterator

from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import evaluation_view
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gridflow._keras.array_data import ArrayOnce

    Results = Callable[[Any], Any]

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


# Rows that count once outside training, on other backends than TensorFlow.
#
# Each rank evaluates and predicts on its own rows, with its own number of steps. The metrics'
# counts are summed at the end.


def hook(
    cls: Any,
    alone: Callable[[Any, ArrayOnce], AbstractContextManager[Results]],
    predicting_alone: Callable[[Any, ArrayOnce | None], AbstractContextManager[None]],
) -> Hook:
    """Return the hook for a backend.

    `cls`: The backend's trainer.
    `alone`: Context manager around an evaluation; gets a model and the `ArrayOnce`. It yields a
        function that turns the logs of this rank's last step into the results of all ranks.
    `predicting_alone`: The same, around a prediction, which may be on other data: then None.
    """

    @contextlib.contextmanager
    def evaluating(model: Any, once: ArrayOnce) -> Iterator[None]:
        with alone(model, once) as results:

            def of_own_rows(logs: Any) -> Any:
                if once.is_empty:
                    model.reset_metrics()
                return results(logs)

            # Bypasses Keras's __setattr__, which would track the value.
            object.__setattr__(model, "_get_metrics_result_or_logs", of_own_rows)
            try:
                yield
            finally:
                object.__delattr__(model, "_get_metrics_result_or_logs")

    @contextlib.contextmanager
    def predicting(model: Any, once: ArrayOnce | None) -> Iterator[Callable[[Any], Any]]:
        import keras

        most = 0 if once is not None and once.is_empty else None
        with predicting_alone(model, once):
            yield lambda found: keras.tree.map_structure(lambda part: part[:most], found)

    return evaluation_view.hook(cls, private_parts.base_trainer(), evaluating, predicting)
