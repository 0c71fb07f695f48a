"""Rows that count once outside training, on other backends than TensorFlow.

Each rank evaluates and predicts on its own rows, with its own number of steps. The metrics' counts
are summed at the end.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import evaluation_view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from gridflow._keras.array_data import ArrayOnce
    from gridflow._keras.patches.registry import Hook

    Results = Callable[[Any], Any]


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
