"""Logs of a step, which ranks average only if a callback looks at them.

That is an exchange of its own in each step. Those of an epoch don't need it: metrics add up what
they have counted when they are read.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import tensorflow as tf

import keras
from gridflow._collectives.errors import is_loss
from gridflow._keras import group, own_callbacks
from gridflow._keras.neutral import NeutralCallback, numbers
from gridflow._keras.patches import private_parts
from gridflow._keras.patches.hooks import position
from gridflow._keras.patches.methods import Layer, wrap
from gridflow._keras.patches.registry import Hook
from gridflow._keras.runtime import present

#: Methods that get the logs of a step.
_METHODS: Final = ("on_train_batch_end", "on_batch_end")
#: On a model: whether its fit needs no averages of a step's logs. On the function of its steps:
#: whether it makes none.
_OWN: Final = "_gridflow_own_logs"


def mean_of(strategy: Any, logs: dict[str, Any]) -> dict[str, Any]:
    """Return the means of logs over all ranks. All must call it."""
    mine = numbers(logs)
    if not mine:
        return logs
    means = strategy.reduce("MEAN", tf.constant(list(mine.values())), axis=None)
    return {**logs, **dict(zip(mine, means.numpy().tolist(), strict=True))}


def _reads(callback: Any) -> bool:
    """Return whether a callback may look at the logs of a step."""
    if isinstance(callback, NeutralCallback):  # shows how training proceeds on its own rank
        return False
    kinds = keras.callbacks
    if type(callback) is kinds.TensorBoard:
        return bool(callback.update_freq != "epoch")
    if type(callback) is kinds.ModelCheckpoint:
        return bool(callback.save_freq != "epoch")
    return any(
        getattr(getattr(callback, name, None), "__func__", None)
        is not getattr(kinds.Callback, name)
        for name in _METHODS
    )


def _is_for(model: Any) -> bool:
    """Return whether the logs of a model's steps are averaged over several ranks."""
    runtime = present()
    return (
        runtime is not None
        and runtime.num_workers > 1
        and runtime.training.distribution.local_steps is None
        and group.is_of(model.distribute_strategy)
    )


def hook() -> Hook:
    """Return the hook of Keras 3."""
    trainer = private_parts.trainer()
    signature = inspect.signature(trainer.fit)

    def fit(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_for(self):
            return original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        callbacks = own_callbacks.flat(given.arguments["callbacks"])
        reads = any(map(_reads, callbacks))
        # If one rank looks, all take part in the averages.
        looking = self.distribute_strategy.reduce("SUM", tf.constant(float(reads)), axis=None)
        vars(self)[_OWN] = not looking  # bypasses Keras's __setattr__
        try:
            return original(self, *args, **kwargs)
        finally:
            del vars(self)[_OWN]

    def make_train_function(make: Any, self: Any, force: bool = False) -> None:
        known, own = self.train_function, vars(self).get(_OWN, False)
        make(self, force or (known is not None and getattr(known, _OWN, False) != own))
        function = self.train_function
        if function is known or not _is_for(self):
            return
        strategy = self.distribute_strategy

        def with_logs(data: Any) -> Any:
            logs = function(data)
            if own:
                return logs
            try:
                return mean_of(strategy, logs)
            except Exception as error:
                runtime = present()
                if runtime is None or runtime.regrouping is None or not is_loss(error):
                    raise
                # The step is complete, and this rank goes on from there once another one is in the
                # lost one's place. What ranks exchange next notices the loss, too.
                return logs

        setattr(with_logs, _OWN, own)
        self.train_function = with_logs

    def results(original: Any, self: Any, logs: Any) -> Any:
        if not logs and position.has_ended(self):
            logs = self.get_metrics_result()
        found = original(self, logs)
        # Those of a custom step are this rank's; metrics are of all ranks.
        is_own = vars(self).get(_OWN, False) and found is logs
        return mean_of(self.distribute_strategy, found) if is_own else found

    def install() -> None:
        wrap(trainer, "fit", fit, Layer.BUG)
        # Inside the wrapper that makes the function anew for other data, and marks it.
        wrap(trainer, "make_train_function", make_train_function, Layer.BUG)
        wrap(trainer, "_get_metrics_result_or_logs", results, Layer.ROUTE)

    return Hook("ranks average the logs of a step only if a callback looks at them", install)
