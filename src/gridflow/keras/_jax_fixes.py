"""Cures for Keras 3 on JAX when several processes train one model."""

# ruff: noqa: SLF001  (what is cured lies in the private parts)

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from keras.src.backend.jax import distribution_lib, trainer
from keras.src.utils import jax_utils

import keras
from gridflow.keras import _group_fixes
from gridflow.keras.fixes import Fix


def _broadcast(variables: list[Any]) -> None:
    values = [np.asarray(variable.value) for variable in variables]
    for variable, value in zip(
        variables, multihost_utils.broadcast_one_to_all(values), strict=True
    ):
        variable.assign(np.asarray(value))


def _cure_distribute_tensor() -> None:
    original = distribution_lib.distribute_tensor

    def distribute_tensor(tensor: Any, layout: Any) -> Any:
        sharding = getattr(layout, "backend_layout", layout)
        if (
            not isinstance(sharding, jax.sharding.Sharding)
            or sharding.is_fully_addressable
            or not sharding.is_fully_replicated
            or jax_utils.is_in_jax_tracing_scope(tensor)
            or not getattr(tensor, "is_fully_addressable", True)
        ):
            return original(tensor, layout)
        value = np.asarray(tensor)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    distribution_lib.distribute_tensor = distribute_tensor


def _cure_predict() -> None:
    original = trainer.JAXTrainer.predict

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        distribution = keras.distribution.distribution()
        if distribution is None or not distribution._is_multi_process:
            return original(self, *args, **kwargs)
        variables = [*self.trainable_variables, *self.non_trainable_variables]
        values = [variable._value for variable in variables]
        function, self.predict_function = self.predict_function, None
        keras.distribution.set_distribution(None)
        try:
            for variable, value in zip(variables, values, strict=True):
                # A copy, as the step takes the memory of its arguments for its results.
                variable._value = jax.numpy.array(np.asarray(value), copy=True)
            return original(self, *args, **kwargs)
        finally:
            keras.distribution.set_distribution(distribution)
            for variable, value in zip(variables, values, strict=True):
                variable._value = value
            self.predict_function = function

    trainer.JAXTrainer.predict = predict


FIXES = (
    _group_fixes.building(),
    _group_fixes.same_weights(trainer.JAXTrainer, _broadcast, jax.distributed.is_initialized),
    Fix(
        "variables are made alone",
        "keras",
        "a variable that one process makes, as it does to save or load a model, waits for the "
        "other processes for ever",
        jax.distributed.is_initialized,
        _cure_distribute_tensor,
    ),
    Fix(
        "predict is local",
        "keras",
        "predict fails as the answers lie in other processes",
        jax.distributed.is_initialized,
        _cure_predict,
    ),
)
