"""One step of asynchronous training, as traced by the chief and run by a worker.

Keras 3 keeps metrics in variables, which it reads and then writes: several workers would overwrite
each other's updates. So a step's metrics start at zero, and their state is returned; the chief adds
them up. The states of all of Keras's own metrics are sums.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gridflow._keras import sharded
from gridflow._keras.patches import private_parts
from gridflow.errors import InvalidArgument


class Steps(ABC):
    """The steps of a model, and their results since the last reset.

    `class_weight`: As in Keras's ``fit``: weight of a row in training, by its label.
    `train`, `test`: Run a step on the next batch of an iterator, and return a result for `add`.
    `train_on`: The same, on a given batch.
    """

    def __init__(self, class_weight: Mapping[int, float] | None = None) -> None:
        import tensorflow as tf

        self._weights_of_classes = None if class_weight is None else _table(class_weight)
        self.train = tf.function(lambda batches: self.train_step(next(batches)), autograph=False)
        self.test = tf.function(lambda batches: self.test_step(next(batches)), autograph=False)
        self.train_on = tf.function(self.train_step, autograph=False, reduce_retracing=True)

    @abstractmethod
    def train_step(self, batch: Any) -> Any:
        """Train on a batch and return a result for `add`; is traced."""

    def weighed(self, batch: Any) -> Any:
        """Return a batch with rows weighted by class."""
        return (
            batch if self._weights_of_classes is None else _weighed(batch, self._weights_of_classes)
        )

    @abstractmethod
    def test_step(self, batch: Any) -> Any:
        """Evaluate a batch and return a result for `add`; is traced."""

    @abstractmethod
    def nothing(self) -> Any:
        """Return the result for no rows."""

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def add(self, found: Any) -> None: ...

    @abstractmethod
    def logs(self, *, final: bool = False) -> Mapping[str, Any]:
        """Return losses and metrics so far; ``final`` if no step is in progress."""


def make_steps(
    model: Any, flavour: str, strategy: Any, class_weight: Mapping[int, float] | None = None
) -> Steps:
    """Return the steps of a built and compiled model of either flavour."""
    if flavour == "keras":
        return _Keras3Steps(model, strategy, class_weight)
    return _TfKerasSteps(model, strategy, class_weight)


def _table(class_weight: Mapping[int, float]) -> np.ndarray:
    """Return the weights of classes in order.

    Raises `InvalidArgument`: They aren't numbered from 0 without gaps.
    """
    if not isinstance(class_weight, Mapping) or sorted(class_weight) != [*range(len(class_weight))]:
        raise InvalidArgument(
            "class_weight must map class numbers, from 0, to weights: {0: 1.0, 1: 2.5}; got "
            f"{class_weight!r}."
        )
    return np.array([class_weight[n] for n in range(len(class_weight))], np.float32)


def _weighed(batch: Any, table: np.ndarray) -> Any:
    import tensorflow as tf

    x, y, *weight = batch if isinstance(batch, tuple) and len(batch) > 1 else (batch, None)
    if y is None or tf.nest.is_nested(y):
        raise InvalidArgument("class_weight needs rows with one label each: label='y'.")
    if y.shape.rank and y.shape.rank > 1:
        y_class = tf.argmax(y, -1) if y.shape[-1] != 1 else tf.squeeze(y, -1)
    else:
        y_class = y
    own = tf.gather(table, tf.cast(tf.round(y_class), tf.int64))
    return x, y, own * tf.cast(weight[0], own.dtype) if weight else own


def _rows_in(data: Any) -> Any:
    import tensorflow as tf

    return tf.shape(tf.nest.flatten(data)[0])[0]


def refuse_asynchronous(optimizer: Any) -> None:
    """Reject an optimizer that needs steps in sequence.

    Raises `InvalidArgument`: It accumulates gradients, or averages weights over steps.
    """
    for name, instead in {
        "gradient_accumulation_steps": "use a larger batch_size",
        "use_ema": "average weights in a callback's on_epoch_end",
    }.items():
        if getattr(optimizer, name, None):
            raise InvalidArgument(
                f"{name} needs steps in sequence, but workers run them in parallel with "
                f"strategy='parameter_server'. Leave it out; {instead}."
            )


class _Keras3Steps(Steps):
    """Steps of a Keras 3 model."""

    def __init__(self, model: Any, strategy: Any, class_weight: Mapping[int, float] | None) -> None:
        import keras

        super().__init__(class_weight)
        for name in ("train_step", "test_step"):
            if getattr(type(model), name) is not getattr(keras.Model, name):
                raise InvalidArgument(
                    f"{type(model).__name__} overrides {name}, which ctx.fit can't run "
                    "asynchronously: its metrics would lose updates of other workers. Override "
                    "compute_loss or compute_metrics, or write the loop with ctx.coordinator."
                )
        refuse_asynchronous(model.optimizer)
        self._model, self._strategy = model, strategy
        self._weights = sharded.trainable_variables(model)
        self._metrics = list(model.metrics_variables)
        self._totals: list[np.ndarray] = []
        self.reset()

    def train_step(self, batch: Any) -> Any:
        return self._strategy.run(self._train, args=(self.weighed(batch),))

    def test_step(self, batch: Any) -> Any:
        return self._strategy.run(self._test, args=(batch,))

    def nothing(self) -> Any:
        import tensorflow as tf

        return [tf.zeros(v.shape, v.dtype) for v in self._metrics]

    def reset(self) -> None:
        self._totals = [np.zeros(tuple(v.shape), str(v.dtype)) for v in self._metrics]

    def add(self, found: Any) -> None:
        self._totals = [
            total + np.asarray(part) for total, part in zip(self._totals, found, strict=True)
        ]

    def logs(self, *, final: bool = False) -> Mapping[str, Any]:
        del final
        import keras

        with keras.StatelessScope(list(zip(self._metrics, self._totals, strict=True))):
            found = self._model.get_metrics_result()
        return {name: float(np.asarray(value)) for name, value in found.items() if _is_one(value)}

    def _train(self, data: Any) -> list[Any]:
        import tensorflow as tf

        model = self._model
        weights = [weight.value for weight in self._weights]
        with tf.GradientTape() as tape:
            outputs, loss, found = self._forward(data, training=True)
            del outputs
            loss = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, weights)
        model.optimizer.apply_gradients(zip(gradients, self._weights, strict=True))
        return found

    def _test(self, data: Any) -> list[Any]:
        return self._forward(data, training=False)[2]

    def _forward(self, data: Any, *, training: bool) -> tuple[Any, Any, list[Any]]:
        import tensorflow as tf

        import keras

        model = self._model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        outputs = model(x, **_if_taken(model.call, training=training))
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in self._metrics]
        # Losses of layers and weights: inside the scope the model wouldn't find its own.
        with private_parts.with_losses(model, model.losses), keras.StatelessScope(zeros) as scope:
            taken = _if_taken(model.compute_loss, training=training)
            loss = model.compute_loss(x, y, outputs, weight, **taken)
            private_parts.count_loss(model, loss, _rows_in(x))
            model.compute_metrics(x, y, outputs, sample_weight=weight)
        return outputs, loss, [tf.convert_to_tensor(scope.get_current_value(v)) for v, _ in zeros]


def _if_taken(method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those arguments that a method of a user's model has."""
    known = inspect.signature(method).parameters
    return {name: value for name, value in arguments.items() if name in known}


class _TfKerasSteps(Steps):
    """Steps of a tf_keras model, whose metrics count on the parameter servers without loss."""

    def __init__(self, model: Any, strategy: Any, class_weight: Mapping[int, float] | None) -> None:
        super().__init__(class_weight)
        self._model, self._strategy = model, strategy
        self._last: Mapping[str, Any] = {}

    def train_step(self, batch: Any) -> Any:
        def train(batch: Any) -> Any:
            found = self._model.train_step(batch)
            private_parts.train_counter(self._model).assign_add(1)
            return found

        return self._strategy.run(train, args=(self.weighed(batch),))

    def test_step(self, batch: Any) -> Any:
        return self._strategy.run(self._model.test_step, args=(batch,))

    def nothing(self) -> Any:
        import tensorflow as tf

        return {metric.name: tf.zeros(()) for metric in self._model.metrics}

    def reset(self) -> None:
        self._last = {}
        self._model.reset_metrics()

    def add(self, found: Any) -> None:
        self._last = found

    def logs(self, *, final: bool = False) -> Mapping[str, Any]:
        if not final:
            return {name: float(np.asarray(value)) for name, value in self._last.items()}
        found = {metric.name: metric.result() for metric in self._model.metrics}
        return {name: float(np.asarray(value)) for name, value in found.items() if _is_one(value)}


def _is_one(value: Any) -> bool:
    return np.ndim(value) == 0


def fetch(value: Any) -> Any:
    """Return the result of a step; None if its worker died after the step.

    Then the step counts, because its update was made: only its metrics are lost.
    """
    import tensorflow as tf

    try:
        return value.fetch()
    except tf.errors.OpError:
        if not private_parts.was_made(value):  # the step itself has failed
            raise
        return None


def updates(model: Any) -> int:
    """Return the number of a model's updates, one per step."""
    return int(model.optimizer.iterations.numpy())
