"""Steps that a rank makes alone, and averages of the ranks' models after some of them.

A step is traced as always, but its collective operations compute as if all ranks had this rank's
values. So gradients, moving statistics and logs are the rank's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from gridflow._keras import group, statistics
from gridflow._keras.group import exchange
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.runtime import present
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._spec.communication import LocalSteps


class Averages:
    """The averages of one model over all ranks, and the steps between them.

    `model`: Of a ``MultiWorkerMirroredStrategy``.
    """

    def __init__(self, model: Any, options: LocalSteps) -> None:
        self._model, self._options = model, options
        self._steps = 0
        #: How many steps had been made at the last average.
        self._averaged = 0
        #: The trainable variables at the last average, and how fast they moved, by identity: others
        #: may be trainable in the next fit.
        self._anchors: list[Any] = []
        self._velocities: dict[int, Any] = {}
        self._known: tuple[list[int], Any] = ([], None)

    @property
    def is_due(self) -> bool:
        """Whether the ranks' models differ."""
        return self._steps != self._averaged

    def make_step(self, function: Callable[[Any], Any], data: Any) -> Any:
        """Make a step alone, and average the models if it is time."""
        if not self.is_due and not self._options.is_plain:
            weights = self._model.trainable_variables
            self._anchors = [tf.identity(each) for each in weights]
        with exchange.alone():
            logs = function(data)
        before, every = self._steps, self._options.sync_every
        self._steps += self._model.steps_per_execution
        if self._steps // every > before // every:
            self.average()
        return logs

    def average(self) -> None:
        """Average the models, if they differ. All ranks must call it."""
        if not self.is_due:
            return
        self._averaged = self._steps
        variables = self._variables()
        means = self._means(variables)
        if not self._options.is_plain:
            count = len(self._anchors)
            means = [*self._moved(means[:count]), *means[count:]]
        with self._model.distribute_strategy.scope():
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    def arrays(self) -> list[np.ndarray]:
        """Return what a checkpoint needs, after an average."""
        known = self._velocities and self._velocities_of(self._model.trainable_variables)
        return [np.array(self._steps), *map(np.array, known)]

    def restore(self, arrays: Sequence[np.ndarray]) -> None:
        """Continue where a checkpoint was made."""
        self._steps = self._averaged = int(arrays[0])
        weights = self._model.trainable_variables if arrays[1:] else []
        self._velocities = {
            id(weight): tf.constant(each) for weight, each in zip(weights, arrays[1:], strict=True)
        }

    def _variables(self) -> list[Any]:
        """Return what steps change: weights first, moving statistics, the optimizer's state.

        The optimizer's single numbers, such as the learning rate, are the same on all ranks.
        """
        model = self._model
        state = [each for each in model.optimizer.variables if tuple(each.shape)]
        found = [*model.trainable_variables, *statistics.diverging(model), *state]
        return [each for each in found if "float" in str(each.dtype)]

    def _means(self, variables: list[Any]) -> list[Any]:
        identities = [id(each) for each in variables]
        if self._known[0] != identities:
            self._known = identities, _averaging(variables, self._model.distribute_strategy)
        means: list[Any]
        *means, steps = self._known[1](tf.constant(self._steps, tf.float64))
        if float(steps) != self._steps:
            raise GridflowError(
                "the ranks' models can't be averaged, because they have made different numbers of "
                f"steps: {self._steps} here, {float(steps):g} on average. Distribution("
                "local_steps=) needs equal steps on all ranks: use ctx.dataset(), or "
                "fit(steps_per_epoch=)."
            )
        return means

    def _velocities_of(self, weights: list[Any]) -> list[Any]:
        known = self._velocities
        return [known[id(w)] if id(w) in known else tf.zeros(w.shape, w.dtype) for w in weights]

    def _moved(self, means: list[Any]) -> list[Any]:
        """Return the weights between the last average and the new one."""
        rate, momentum = self._options.outer_learning_rate, self._options.outer_momentum
        weights = self._model.trainable_variables
        moves = [old - new for old, new in zip(self._anchors, means, strict=True)]
        before = self._velocities_of(weights)
        velocities = [momentum * old + new for old, new in zip(before, moves, strict=True)]
        self._velocities = dict(zip(map(id, weights), velocities, strict=True))
        steps = zip(self._anchors, moves, velocities, strict=True)
        return [old - rate * (move + momentum * velocity) for old, move, velocity in steps]


def _averaging(variables: list[Any], strategy: Any) -> Callable[[Any], list[Any]]:
    """Return the traced function that averages variables, and a number."""
    sizes = [int(np.prod(each.shape)) for each in variables]

    def of_replica(number: Any) -> list[Any]:
        replica = tf.distribute.get_replica_context()
        # One collective operation for all variables, which may be of half precision.
        flat = tf.concat([tf.cast(tf.reshape(v, [-1]), tf.float32) for v in variables], 0)
        parts = tf.split(replica.all_reduce("MEAN", flat), sizes)
        means = [
            tf.cast(tf.reshape(part, v.shape), v.dtype)
            for part, v in zip(parts, variables, strict=True)
        ]
        return [*means, replica.all_reduce("MEAN", tf.identity(number))]

    def averaged(number: Any) -> list[Any]:
        found = strategy.run(of_replica, args=(number,))
        return [strategy.experimental_local_results(each)[0] for each in found]

    function: Callable[[Any], list[Any]] = tf.function(averaged, autograph=False)
    return function


def _options() -> LocalSteps | None:
    runtime = present()
    if runtime is None or runtime.num_workers == 1:
        return None
    return runtime.training.distribution.local_steps


def _is_wanted() -> bool:
    return _options() is not None


def hook() -> Hook:
    """Return the hook of Keras 3."""
    trainer = private_parts.trainer()

    def make_train_function(make: Any, self: Any, force: bool = False) -> None:
        known = self.train_function
        make(self, force)
        function, options = self.train_function, _options()
        strategy = self.distribute_strategy
        if function is known or options is None or not group.is_of(strategy):
            return
        averages = self.__dict__.get(statistics.AVERAGES) or Averages(self, options)
        # Bypasses Keras's __setattr__, which would track it as a part of the model.
        object.__setattr__(self, statistics.AVERAGES, averages)
        self.train_function = lambda data: averages.make_step(function, data)

    def results(original: Any, self: Any, logs: Any) -> Any:
        averages = self.__dict__.get(statistics.AVERAGES)
        if averages is None or not averages.is_due:
            return original(self, logs)
        averages.average()
        found = original(self, logs)
        from gridflow._keras.patches.hooks import step_logs  # imports Keras 3

        # Those of a custom step are this rank's; metrics are of all ranks.
        return step_logs.mean_of(self.distribute_strategy, found) if found is logs else found

    def evaluate(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        averages = self.__dict__.get(statistics.AVERAGES)
        if averages is not None:
            averages.average()  # after steps of train_on_batch
        return original(self, *args, **kwargs)

    def install() -> None:
        wrap(trainer, "evaluate", evaluate, Layer.ROUTE)
        # Inside the wrapper that makes the function anew for other data, and marks it.
        wrap(trainer, "make_train_function", make_train_function, Layer.BUG)
        wrap(trainer, "_get_metrics_result_or_logs", results, Layer.ROUTE)

    return Hook("ranks make steps alone, and average their models", install, _is_wanted)


def refuse() -> None:
    """Refuse to train a model of tf_keras, which has no such steps.

    Raises `InvalidArgument`: The job wants them.
    """
    if _is_wanted():
        raise InvalidArgument(
            "Distribution(local_steps=) is for Keras 3, and this is a tf_keras model. Leave it "
            "out, or use a keras model."
        )
