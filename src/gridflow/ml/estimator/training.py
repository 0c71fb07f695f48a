"""The training code of an estimator in the workers. Doesn't import Spark."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gridflow._feed.dataset.source import chain
from gridflow._keras.patches.private_parts import layer_of
from gridflow._keras.results import declared
from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.ml.estimator import columns, keras_objects, shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gridflow._training.context import TrainingContext


@dataclass(frozen=True)
class Recipe:
    """The settings of an estimator for the workers.

    `source`: The model, or a function that creates it.
    `compiling`: ``optimizer``, ``loss``, ``metrics``, if set.
    `features`, `labels`: Forms of `gridflow.ml.estimator.columns`.
    `lists` (frozenset of str): Columns with arrays or vectors.
    `bytes` (mapping of str to str): Types of the columns with bytes or text.
    `map`: What batches go through first.
    `weight`, `validation_weight`: Columns of weights for the two datasets.
    `early_stopping`: Metric, patience, and mode if given.
    `validates`: Whether there is a ``validation`` dataset.
    `hands_out_steps`: Whether ``ctx.fit`` trains, with parameter servers.
    """

    source: keras_objects.ModelFile | Callable[[], Any]
    features: Any
    labels: Any
    lists: frozenset[str] = frozenset()
    bytes: Mapping[str, str] = field(default_factory=dict)
    map: Callable[..., Any] | None = None
    weight: str | Mapping[str, str] | None = None
    validation_weight: str | Mapping[str, str] | None = None
    early_stopping: tuple[Any, ...] | None = None
    epochs: int = 1
    batch_size: int = 32
    shuffle: bool = True
    validates: bool = False
    hands_out_steps: bool = False
    compiling: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    custom_objects: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[Any] | Callable[..., Sequence[Any]] = ()
    safe_mode: bool = True


def train(ctx: TrainingContext, recipe: Recipe) -> Any:
    """Train, and return the model."""
    with ctx.strategy.scope():
        model = _made(recipe)
        keras_objects.compile_with(
            model,
            recipe.compiling,
            recipe.learning_rate,
            recipe.custom_objects,
            recipe.safe_mode,
        )
    if recipe.map is None:
        _refuse_bytes(model, recipe)
    inputs = _fits(model, recipe.features, "input", recipe.lists)
    outputs = _fits(model, recipe.labels, "output", recipe.lists)
    features = columns.feeding_form(recipe.features, _inputs(model), "input")
    labels = columns.feeding_form(recipe.labels, _names(model, "output"), "output")
    chosen = {
        "batch_size": recipe.batch_size,
        "features": shapes.columns_of(inputs, features),
        "label": shapes.columns_of(outputs, labels),
        "map": _after(recipe.map, _in_order(model, shapes.fitting(inputs, outputs))),
    }
    weights = {"sample_weight": _by_label(recipe.weight, labels)}
    rows = ctx.dataset("train", shuffle=recipe.shuffle, **chosen, **weights)
    validation = None
    if recipe.validates:
        weights = {"sample_weight": _by_label(recipe.validation_weight, labels)}
        validation = ctx.dataset("validation", **chosen, **weights)
    callbacks = [*ctx.callbacks(), *_own_callbacks(recipe.callbacks, ctx)]
    if recipe.early_stopping is not None:
        callbacks.append(_early_stopping(model, *recipe.early_stopping))
    if recipe.hands_out_steps:
        ctx.fit(model, rows, validation=validation, epochs=recipe.epochs, callbacks=callbacks)
    else:
        model.fit(
            rows, validation_data=validation, epochs=recipe.epochs, verbose=0, callbacks=callbacks
        )
    return model


def _made(recipe: Recipe) -> Any:
    if isinstance(recipe.source, keras_objects.ModelFile):
        options = {"custom_objects": dict(recipe.custom_objects), "safe_mode": recipe.safe_mode}
        return recipe.source.load(options)
    return keras_objects.returned_by(recipe.source)


def _names(model: Any, kind: str) -> list[str]:
    return list(declared(model, kind))


def _fits(model: Any, form: Any, kind: str, lists: frozenset[str]) -> dict[str, shapes.Fit]:
    """Return how columns map to each declared input or output of a model."""
    tensors = declared(model, kind)
    if not tensors:
        return {}
    places = columns.arranged(form, list(tensors), kind)
    return {
        name: shapes.Fit.of(kind, name, tensor, places[name], lists)
        for name, tensor in tensors.items()
    }


def _refuse_bytes(model: Any, recipe: Recipe) -> None:
    tensors = declared(model, "input")
    places = columns.arranged(recipe.features, list(tensors), "input") if tensors else {}
    for name, tensor in tensors.items():
        dtype = str(getattr(tensor.dtype, "name", tensor.dtype))
        shapes.refuse_bytes(name, dtype, tuple(tensor.shape[1:]), places[name], recipe.bytes)


def _after(first: Callable[..., Any] | None, second: Callable[..., Any] | None) -> Any:
    return chain(first, second) if first and second else first or second


def _inputs(model: Any) -> list[str]:
    """Return the names of the inputs; one for a Sequential without Input."""
    is_sequential = isinstance(model, keras_objects.flavour_package(model).Sequential)
    return _names(model, "input") or (["input"] if is_sequential else [])


def _in_order(model: Any, fit: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return a function on batches that also puts inputs in order if Keras can't take their names.

    It expects two at once of an input without a name: its layer's and its tensor's.
    """
    tensors = declared(model, "input")
    is_unnamed = any(name == each.name != layer_of(each).name for name, each in tensors.items())
    if len(tensors) == 1 or not is_unnamed:
        return fit

    def ordered(*batch: Any) -> tuple[Any, ...]:
        x, *rest = fit(*batch) if fit else batch
        return tuple(x[name] for name in tensors), *rest

    return ordered


def _by_label(weight: str | Mapping[str, str] | None, labels: Any) -> Any:
    """Return the columns of weights; that of a single output without its name."""
    if isinstance(weight, Mapping) and len(weight) == 1 and not isinstance(labels, Mapping):
        return next(iter(weight.values()))
    return weight


def _early_stopping(model: Any, metric: str, patience: int, mode: str = "auto") -> Any:
    """Return Keras's callback, which here is an error where the logs never have the metric."""

    class EarlyStopping(keras_objects.flavour_package(model).callbacks.EarlyStopping):  # type: ignore[misc]
        def get_monitor_value(self, logs: dict[str, float] | None) -> Any:
            if metric not in (logs or {}):
                known = sorted(logs or {})
                raise InvalidArgument(
                    f"earlyStopping: the logs of an epoch have no {metric!r}; they have "
                    f"{', '.join(known)}.{did_you_mean(metric, known)}"
                )
            return super().get_monitor_value(logs)

    return EarlyStopping(metric, patience=patience, mode=mode, restore_best_weights=True)


def _own_callbacks(
    given: Sequence[Any] | Callable[..., Sequence[Any]], ctx: TrainingContext
) -> Sequence[Any]:
    if not callable(given):
        return given
    takes_context = next(iter(inspect.signature(given).parameters), None) == "ctx"
    found = given(ctx) if takes_context else given()
    if not isinstance(found, list | tuple):
        raise InvalidArgument(
            "the function passed as callbacks= must return a list of callbacks; it returned "
            f"{found!r}."
        )
    return found
