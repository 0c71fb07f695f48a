"""Runs Keras 3 under parameter servers, which it doesn't support.

``fit`` is ``ctx.fit``, and optimizers are built for loops of one's own. ``evaluate`` also runs on
the workers if they can read the data. Other data of ``evaluate`` and ``predict`` are read once, by
the chief, which fetches the variables.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import tensorflow as tf
from keras.src import backend
from keras.src.optimizers import base_optimizer

from gridflow._keras import runtime
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.resume import building
from gridflow._keras.servers.steps import refuse_asynchronous
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVERS: Final = tf.distribute.ParameterServerStrategy
TRAINER: Final = private_parts.trainer()
#: Arguments of ``fit`` that are for arrays, or that workers reading batches don't support.
_NOT_FOR_FIT: Final = (
    "y",
    "sample_weight",
    "batch_size",
    "validation_split",
    "validation_batch_size",
    "validation_freq",
)


class _OnChief:
    """A model that evaluates and predicts on the chief, whatever its strategy."""

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
            f"model.fit doesn't support {', '.join(wrong)} with strategy='parameter_server', where "
            "workers read batches themselves. Pass rows with run(data=…) and call ctx.fit(model, "
            "'train', validation='validation', batch_size=64, features='x', label='y'); or pass a "
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
            # As in Keras 2: one line per epoch.
            verbose=2 if verbose == "auto" else verbose,
            initial_epoch=given["initial_epoch"],
            class_weight=given["class_weight"],
        )
    )


def _update_in_loops() -> None:
    """Check and build the optimizers of loops of one's own, which workers run in parallel."""

    def apply(
        original: Any, self: Any, grads: Sequence[Any], trainable_variables: Any = None
    ) -> Any:
        if isinstance(tf.distribute.get_strategy(), _SERVERS):
            refuse_asynchronous(self)
            if trainable_variables is not None and not self.built:
                trainable_variables = list(trainable_variables)
                # A step that a worker runs can't create variables.
                with tf.init_scope(), backend.name_scope(self.name, caller=self):
                    self.build(trainable_variables)
        return original(self, grads, trainable_variables)

    wrap(base_optimizer.BaseOptimizer, "apply", apply, Layer.CHECK)


def hook() -> Hook:
    def install() -> None:
        _send()
        _update_in_loops()

    return Hook("fit, evaluate, predict and loops work under parameter servers", install)
