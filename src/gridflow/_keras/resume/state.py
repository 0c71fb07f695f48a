"""Reads and sets all variables of a training run: model, optimizer, metrics, random seeds.

Reading may be a collective operation (a variable that is summed or averaged over the ranks when it
is read), so all ranks read together, in the same order.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._keras import statistics
from gridflow._keras.patches import private_parts, registry
from gridflow._keras.results import is_tensorflow
from gridflow._keras.resume.checkpoint_file import Checkpoint, Entry, check_same
from gridflow._spec import backends

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Bytes of numbers that can be added up.
_WIDE: Final = 4
#: The group of an optimizer beside the model's own.
OTHER: Final = "optimizer {} beside the model's own"


def variables(model: Any, flavour: str, *, metrics: bool) -> dict[str, list[Any]]:
    """Return the variables by group, in the same order in every process.

    `model`: A built and compiled model.
    `flavour`: {"keras", "tf_keras"}.
    `metrics`: Whether to include the metrics, which matter in the middle of an epoch.
    """
    if flavour == "keras":
        groups = {
            "model": list(model.variables),
            "optimizer": list(model.optimizer.variables),
            "metrics": list(model.metrics_variables) if metrics else [],
            "random": private_parts.global_seeds(),
        }
    else:
        counters = [private_parts.train_counter(model)]
        of_metrics = [v for m in model.metrics for v in m.variables]
        # Those of a metric that is an attribute are weights, too, but reset at each epoch's start.
        ids = {id(variable) for variable in of_metrics}
        groups = {
            "model": [v for v in model.weights if id(v) not in ids] + counters,
            "optimizer": variables_of(model.optimizer),
            "metrics": of_metrics if metrics else [],
            "random": private_parts.random_states(model),
        }
    for i, each in enumerate(others(model, flavour)):
        groups[OTHER.format(i)] = variables_of(each)
    # A metric inside the model would be in two groups; a layer that is used twice occurs once.
    seen: set[int] = set()
    return {group: [v for v in found if is_new(v, seen)] for group, found in groups.items()}


def collect(model: Any, flavour: str, *, metrics: bool) -> list[Entry]:
    """Read all variables. All ranks must call it."""
    if hasattr(model, "jax_state_sync"):  # between steps, JAX's variables are empty
        model.jax_state_sync()
    groups = variables(model, flavour, metrics=metrics)
    shares = statistics.shares(model, groups["metrics"])
    averages = model.__dict__.get(statistics.AVERAGES)
    arrays = [] if averages is None else averages.arrays()
    trained = {id(variable) for variable in model.trainable_variables}
    return [
        Entry(
            group,
            name_of(variable),
            shares[i] if group == "metrics" and shares else _read(variable, model),
            is_trained=group != "model" or id(variable) in trained,
        )
        for group, found in groups.items()
        for i, variable in enumerate(found)
    ] + [
        *(Entry("averages", f"{i}", array) for i, array in enumerate(arrays)),
        *backends_random_states(model),
    ]


def restore(model: Any, flavour: str, checkpoint: Checkpoint, groups: Iterable[str]) -> None:
    """Set the variables of some groups.

    Raises `InvalidArgument`: The checkpoint is of a different model.
    """
    there = variables(model, flavour, metrics="metrics" in groups)
    for group in groups:
        entries, found = checkpoint.group(group), there.get(group, [])
        if group == "optimizer" and not checkpoint.is_optimizer_built:
            found = found[: len(entries)]
        if group == "random" and len(entries) > len(found):
            # Global seeds are created on first use, which may not have happened yet.
            entries = entries[: len(found)]
        shapes = [tuple(variable.shape) for variable in found]
        check_same(entries, [name_of(variable) for variable in found], shapes, group)
        with model.distribute_strategy.scope() if is_tensorflow(model) else nullcontext():
            for entry, variable in zip(entries, found, strict=True):
                variable.assign(entry.value)
    averages, arrays = model.__dict__.get(statistics.AVERAGES), checkpoint.group("averages")
    if averages is not None and arrays:
        averages.restore([entry.value for entry in arrays])


def sums(model: Any) -> list[tuple[str, float, float]]:
    """Return the name, sum and norm of each weight that is trained; empty for an unbuilt model."""
    try:
        found = list(model.trainable_variables)
    except ValueError:  # of tf_keras
        return []
    told = []
    for variable in found:
        value = _read(variable, model)
        wide = value.astype(np.float32) if value.dtype.itemsize < _WIDE else value
        total, norm = wide.sum(dtype=np.float64), np.linalg.norm(wide)
        told.append((name_of(variable), float(total), float(norm)))
    return told


def checksums(model: Any) -> list[tuple[str, int]]:
    """Return the name and a checksum of each variable of a layer that holds no floats."""
    return [
        (name_of(variable), zlib.crc32(_read(variable, model).tobytes()))
        for variable in statistics.of_layers(model)
        if "float" not in str(variable.dtype)
    ]


def rates(model: Any, flavour: str) -> list[float]:
    """Return the learning rates that are variables, which callbacks change."""
    return [float(np.array(_read(rate, model))) for rate in _rates(model, flavour)]


def set_rates(model: Any, flavour: str, values: Sequence[float]) -> None:
    for rate, value in zip(_rates(model, flavour), values, strict=False):
        rate.assign(value)


def _rates(model: Any, flavour: str) -> list[Any]:
    found = []
    for optimizer in (model.optimizer, *others(model, flavour)):
        for each in getattr(optimizer, "optimizers", None) or [optimizer]:
            rate = getattr(each, "learning_rate", None)
            if hasattr(rate, "assign"):
                found.append(rate)
    return found


def set_random_states(checkpoint: Checkpoint) -> None:
    """Set the backend's own random states. It draws from them when it starts to read data, too."""
    if checkpoint.flavour == "keras" and backends.of(_backend()).has_random_state:
        states = [entry.value for entry in checkpoint.group(_backend())]
        if states:
            registry.hooks_of("keras").set_random_states(states)


def backends_random_states(model: Any) -> list[Entry]:
    """Return the backend's own random states, from which Keras's layers draw without a seed."""
    if is_tensorflow(model) or not backends.of(_backend()).has_random_state:
        return []
    states = registry.hooks_of("keras").random_states()
    return [Entry(_backend(), f"{i}", state) for i, state in enumerate(states)]


def _backend() -> str:
    import keras

    name: str = keras.backend.backend()
    return name


def _read(variable: Any, model: Any) -> np.ndarray:
    return read(variable, is_tensor=is_tensorflow(model))


def read(variable: Any, *, is_tensor: bool) -> np.ndarray:
    """Return a variable's value over all ranks.

    `is_tensor`: Whether it is TensorFlow's.
    """
    if not is_tensor:
        return np.array(variable.numpy())
    import tensorflow as tf

    return np.asarray(tf.convert_to_tensor(tensor_of(variable)))


def tensor_of(variable: Any) -> Any:
    """Return what holds the value of a variable of either flavour."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value


def name_of(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def is_new(variable: Any, seen: set[int]) -> bool:
    """Note that a variable was seen; return whether it wasn't before."""
    if id(variable) in seen:
        return False
    seen.add(id(variable))
    return True


def variables_of(owner: Any) -> list[Any]:
    """Return the variables of an optimizer of any kind, or of another object that has some."""
    found = owner.variables
    return list(found() if callable(found) else found)


# Optimizers that a model has beside the one it is compiled with, as the two of a GAN.
#
# Keras builds them when the model's own ``train_step`` uses them first, for some of its variables.
# A checkpoint says for which, so that they can be built, and restored, before that.


def others(model: Any, flavour: str) -> list[Any]:
    """Return the optimizers in a model's attributes, and in those of its submodels."""
    kind = sys.modules[flavour].optimizers.Optimizer
    found: list[Any] = [getattr(model, "optimizer", None)]
    for layer in private_parts.layers(model):
        for value in list(vars(layer).values()):
            for each in _items(value):
                if isinstance(each, kind) and not any(each is one for one in found):
                    found.append(each)
    return found[1:]


def places(model: Any, optimizer: Any) -> list[int]:
    """Return which of the model's variables an optimizer is built for."""
    if not private_parts.is_optimizer_built(optimizer):
        return []
    of_key = {private_parts.key_of(optimizer, each): i for i, each in enumerate(model.variables)}
    keys = private_parts.keys_of(optimizer)
    return [of_key[key] for key in keys] if all(key in of_key for key in keys) else []


def build(model: Any, flavour: str, built: Sequence[Sequence[int]]) -> None:
    """Build the optimizers for these of the model's variables."""
    variables = model.variables
    with model.distribute_strategy.scope() if is_tensorflow(model) else nullcontext():
        for optimizer, there in zip(others(model, flavour), built, strict=False):
            if there and not private_parts.is_optimizer_built(optimizer):
                optimizer.build([variables[place] for place in there])


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    else:
        yield value
