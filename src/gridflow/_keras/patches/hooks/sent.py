"""Keras 3's ``fit`` under parameter servers, which it doesn't know: ``ctx.fit`` does it.

``evaluate`` of what workers can read goes to them, too. What else is given to ``evaluate`` and
``predict`` is read once, by the chief, which fetches the variables.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import tensorflow as tf

from gridflow._keras import runtime
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.resume import building
from gridflow.errors import InvalidArgument

_SERVERS: Final = tf.distribute.ParameterServerStrategy
TRAINER: Final = private_parts.trainer()
#: Of ``fit``: what belongs to arrays, and what workers that draw batches can't do.
_NOT_FOR_FIT: Final = (
    "y",
    "sample_weight",
    "batch_size",
    "validation_split",
    "validation_batch_size",
    "validation_freq",
)


class _OnChief:
    """A model that is tested and predicts here, whatever its strategy."""

    test_function = predict_function = None
    make_test_function = TRAINER.make_test_function
    make_predict_function = TRAINER.make_predict_function
    _make_function = TRAINER._make_function

    def __init__(self, model: Any) -> None:
        self._model = model
        self.distribute_strategy = tf.distribute.get_strategy()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _maybe_symbolic_build(self, iterator: Any) -> None:
        with self._model.distribute_strategy.scope():
            building.build_sharded(self._model, iterator._distributed_dataset.element_spec)


def _send() -> None:
    of_fit, of_evaluate = inspect.signature(TRAINER.fit), inspect.signature(TRAINER.evaluate)

    def sent_fit(fit: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.distribute_strategy, _SERVERS):
            return fit(self, *args, **kwargs)
        given = of_fit.bind(self, *args, **kwargs)
        given.apply_defaults()
        return _fit(self, **{k: v for k, v in given.arguments.items() if k != "self"})

    def sent_evaluate(evaluate: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.distribute_strategy, _SERVERS):
            return evaluate(self, *args, **kwargs)
        given = of_evaluate.bind(self, *args, **kwargs).arguments
        if not callable(given.get("x")):
            return evaluate(_OnChief(self), *args, **kwargs)
        logs = runtime.current().trainer(self).evaluate(given["x"], steps=given.get("steps"))
        if given.get("return_dict"):
            return logs
        return private_parts.part(self, "_flatten_metrics_in_order")(logs)

    def sent_predict(predict: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.distribute_strategy, _SERVERS):
            return predict(_OnChief(self), *args, **kwargs)
        return predict(self, *args, **kwargs)

    wrap(TRAINER, "fit", sent_fit, Layer.ROUTE)
    wrap(TRAINER, "evaluate", sent_evaluate, Layer.ROUTE)
    wrap(TRAINER, "predict", sent_predict, Layer.ROUTE)


def _fit(model: Any, x: Any, *, verbose: Any, callbacks: Any, **given: Any) -> Any:
    defaults = inspect.signature(TRAINER.fit).parameters
    wrong = [name for name in _NOT_FOR_FIT if given[name] is not defaults[name].default]
    if wrong:
        raise InvalidArgument(
            f"model.fit can't take {', '.join(wrong)} under strategy='parameter_server': workers "
            "read batches by themselves. Give rows by run(data=…), ctx.fit(model, 'train', "
            "validation='validation', batch_size=64, features='x', label='y'); or a "
            "tf.data.Dataset of batches, or a function that returns one, with steps_per_epoch."
        )
    return (
        runtime.current()
        .trainer(model)
        .fit(
            x,
            epochs=given["epochs"],
            steps_per_epoch=given["steps_per_epoch"],
            validation=given["validation_data"],
            validation_steps=given["validation_steps"],
            callbacks=list(callbacks or ()),
            # As Keras 2 had it there: a line an epoch.
            verbose=2 if verbose == "auto" else verbose,
            initial_epoch=given["initial_epoch"],
            class_weight=given["class_weight"],
        )
    )


def hook() -> Hook:
    """Return the hook."""
    return Hook("fit under parameter servers is ctx.fit", _send)
