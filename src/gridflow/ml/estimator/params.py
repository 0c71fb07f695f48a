"""The Params of `KerasEstimator` and `KerasModel`, with their converters, setters and getters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters

from gridflow._spec.backends import BACKENDS
from gridflow._spec.gpus import GpuNeed
from gridflow._spec.option_checks import choose
from gridflow.errors import InvalidArgument
from gridflow.ml.estimator import columns, keras_objects

C = TypeVar("C", bound=type)


def with_accessors(kind: C) -> C:
    """Add ``getX`` and ``setX`` for each Param of a class, as in Spark."""
    for name in dir(kind):
        param = getattr(kind, name)
        if isinstance(param, Param):
            title = name[0].upper() + name[1:]
            for verb, make in (("get", _getter), ("set", _setter)):
                if not hasattr(kind, verb + title):
                    method = make(name)
                    method.__name__ = verb + title
                    method.__qualname__ = f"{kind.__qualname__}.{verb}{title}"
                    setattr(kind, verb + title, method)
    return kind


def _getter(name: str) -> Callable[..., Any]:
    def get(self: Params) -> Any:
        return self.getOrDefault(name)

    get.__doc__ = f"Return the value of `{name}`, or its default."
    return get


def _setter(name: str) -> Callable[..., Any]:
    def set_value(self: Params, value: Any) -> Params:
        if value is None:
            self.clear(self.getParam(name))
            return self
        return self._set(**{name: value})

    set_value.__doc__ = f"Set `{name}`; None resets it. Returns this object."
    return set_value


def _plain_number(value: Any) -> Any:
    """Convert a numpy number to Python's: Spark's converters support few of them."""
    return value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value


def _whole(name: str, minimum: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        number = TypeConverters.toInt(_plain_number(value))
        if number < minimum:
            raise InvalidArgument(
                f"{name} must be a whole number of at least {minimum}; got {value!r}."
            )
        return number

    return convert


def _number(name: str, *, positive: bool = False) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        number = TypeConverters.toFloat(_plain_number(value))
        if not math.isfinite(number) or (positive and number <= 0):
            raise InvalidArgument(
                f"{name} must be a number{' greater than 0' if positive else ''}; got {value!r}."
            )
        return number

    return convert


def _column(value: Any) -> str:
    name = TypeConverters.toString(value)
    if not name:
        raise TypeError("a column name can't be empty.")
    return name


def _weights(value: Any) -> Any:
    """Return a column, or one for each output."""
    if isinstance(value, Mapping) and value:
        return {_column(name): _column(column) for name, column in value.items()}
    return _column(value)


def _class_weight(value: Any) -> dict[int, float]:
    """Return the weights by the numbers of the classes, which JSON has as text."""
    if not isinstance(value, Mapping) or not value:
        raise TypeError(f"it maps classes to weights, such as {{0: 1.0, 1: 3.0}}; got {value!r}.")
    found = {}
    for key, weight in value.items():
        number = TypeConverters.toInt(int(key) if isinstance(key, str) else _plain_number(key))
        found[number] = TypeConverters.toFloat(_plain_number(weight))
        if not (math.isfinite(found[number]) and found[number] >= 0):
            raise InvalidArgument(
                f"classWeight must have weights of at least 0; got {weight!r} for class {key!r}."
            )
    return found


def _early_stopping(value: Any) -> tuple[str, int] | tuple[str, int, str]:
    """Return the metric and the patience, and whether it is to be small or large if given."""
    if not isinstance(value, list | tuple) or len(value) not in {2, 3}:
        raise TypeError(
            "it is a metric of the logs and how many epochs to wait for a better value, such as "
            f"('val_loss', 3), and 'min' or 'max' if Keras can't know which; got {value!r}."
        )
    metric = TypeConverters.toString(value[0])
    patience = _whole("the patience of earlyStopping", 0)(value[1])
    if len(value) == 2:  # noqa: PLR2004
        return metric, patience
    choose("earlyStopping's mode", value[2], ("min", "max"))
    return metric, patience, str(value[2])


def _prediction(value: Any) -> Any:
    """Return one name, names by output, or names in the order of the outputs."""
    form = columns.checked_form(value)
    places = [form] if isinstance(form, str) else form
    named = list(places.values()) if isinstance(places, Mapping) else list(places)
    if not all(isinstance(name, str) for name in named):
        raise TypeError(f"it names one column for each output; got {value!r}.")
    if len(set(named)) < len(named):
        raise TypeError(f"it names a column twice: {value!r}.")
    return form


def _model(value: Any) -> Any:
    if keras_objects.is_model(value) or isinstance(value, keras_objects.ModelFile):
        return value
    if not callable(value) or (inspect.isclass(value) and value.__init__ is object.__init__):
        raise TypeError(
            "it must be a Keras model, or a function without arguments that makes one; got "
            f"{value!r}."
        )
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise TypeError(
            f"the workers call the function without arguments: {error}. Use functools.partial to "
            "fill them in."
        ) from error
    except ValueError:  # some callables written in C have no signature
        pass
    return value


def _optimizer(value: Any) -> Any:
    if not isinstance(value, str | Mapping) and not hasattr(value, "get_config"):
        raise TypeError(f"it is an optimizer of Keras, its name or its config; got {value!r}.")
    return keras_objects.described(value)


def _loss(value: Any) -> Any:
    if not isinstance(value, str | Mapping | list | tuple) and not callable(value):
        raise TypeError(
            "it is a loss of Keras, its name or its config, or a function; or a list, or a dict by "
            f"output, of these; got {value!r}."
        )
    return keras_objects.described(value)


def _metrics(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError(
            f"it must be a list, such as [{value!r}], or a dict by output; got {value!r}."
        )
    if not isinstance(value, list | tuple | Mapping):
        raise TypeError(f"it must be a list of metrics, or a dict by output; got {value!r}.")
    return keras_objects.described(value)


def _custom_objects(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"it maps names to classes or functions; got {value!r}.")
    return dict(value)


def _callbacks(value: Any) -> Any:
    if isinstance(value, list | tuple) and all(hasattr(each, "set_model") for each in value):
        return list(value)
    if callable(value):
        return value
    raise TypeError(
        "it is a list of Keras callbacks, or a function, without arguments or with ctx, that "
        f"returns one in each worker; got {value!r}."
    )


def _map(value: Any) -> Any:
    if not callable(value):
        raise TypeError(
            "it is a function of batches, x, y and the weights if there are any, such as "
            f"gridflow.data.image_decoder(64, 64); got {value!r}."
        )
    return value


def _gpus(value: Any) -> float:
    GpuNeed.parse("gpus", _plain_number(value))
    number: float = _plain_number(value)
    return number


def _backend(value: Any) -> str:
    choose("backend", value, BACKENDS)
    return str(value)


def _distributor(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise TypeError(
            "it is a dict of what TensorflowDistributor takes, such as {'max_restarts': 3, 'logs': "
            f"'none'}}; got {value!r}."
        )
    return dict(value)


def _param(name: str, doc: str, convert: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, doc, convert)  # noqa: SLF001 (as Spark's own classes do)


class PredictionParams(Params):
    """Params of both: the columns of features and predictions."""

    featuresCol = _param(  # noqa: N815 (Spark's way to write Params, here and below)
        "featuresCol",
        "columns of the model's inputs: a name (vector, array or number), a list of names, or a "
        "dict of input name to column(s)",
        columns.checked_form,
    )
    labelCol = _param(  # noqa: N815
        "labelCol",
        "columns of the labels: a name, a list of names, or a dict of output name to column(s)",
        columns.checked_form,
    )
    predictionCol = _param(  # noqa: N815
        "predictionCol",
        "column of the predictions: double for one number per row, array<float> for several, a "
        "struct for several outputs; or one name for each output. With probabilityCol or "
        "rawPredictionCol: the class, as double",
        _prediction,
    )
    probabilityCol = _param(  # noqa: N815
        "probabilityCol",
        "makes the model a classifier: column of the classes' probabilities, a vector",
        _column,
    )
    rawPredictionCol = _param(  # noqa: N815
        "rawPredictionCol",
        "makes the model a classifier: column of the model's outputs as they are, a vector",
        _column,
    )
    threshold = _param(
        "threshold",
        "for a classifier with one output number: above it the class is 1.0",
        _number("threshold"),
    )
    customObjects = _param(  # noqa: N815
        "customObjects",
        "custom classes and functions by name, for loading the model",
        _custom_objects,
    )
    safeMode = _param(  # noqa: N815
        "safeMode",
        "reject a model that contains Python code, such as a Lambda layer",
        TypeConverters.toBoolean,
    )
    map = _param(
        "map",
        "function that batches go through in training, and if it takes x alone in transform, such "
        "as gridflow.data.image_decoder(64, 64)",
        _map,
    )
    predictBatchSize = _param(  # noqa: N815
        "predictBatchSize",
        "maximum rows per call of the model in transform",
        _whole("predictBatchSize", 1),
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            featuresCol="features",
            labelCol="label",
            predictionCol="prediction",
            threshold=0.5,
            safeMode=True,
            predictBatchSize=1024,
        )

    def given(self, name: str) -> Any:
        """Return the value of a Param; None if it has neither a value nor a default."""
        return self.getOrDefault(name) if self.isDefined(name) else None

    @property
    def _classifies(self) -> bool:
        return any(self.given(name) for name in ("probabilityCol", "rawPredictionCol"))


class EstimatorParams(PredictionParams):
    """Further Params of an estimator."""

    model = _param(
        "model", "a Keras model, compiled or not, or a function without arguments", _model
    )
    weightCol = _param(  # noqa: N815
        "weightCol", "column of the rows' weights; or a dict of output name to column", _weights
    )
    classWeight = _param(  # noqa: N815
        "classWeight",
        "weights of the classes in training: a dict of class to weight",
        _class_weight,
    )
    earlyStopping = _param(  # noqa: N815
        "earlyStopping",
        "(metric, patience): end the fit after so many epochs without a better value, with the "
        "weights of the best",
        _early_stopping,
    )
    validationIndicatorCol = _param(  # noqa: N815
        "validationIndicatorCol",
        "boolean column: rows where it is true are used for validation, not for training",
        _column,
    )
    numWorkers = _param(  # noqa: N815
        "numWorkers", "number of training tasks, each in its own process", _whole("numWorkers", 1)
    )
    epochs = _param("epochs", "number of passes over all rows", _whole("epochs", 1))
    batchSize = _param(  # noqa: N815
        "batchSize", "maximum rows per worker and step", _whole("batchSize", 1)
    )
    shuffle = _param("shuffle", "whether to reshuffle in each epoch", TypeConverters.toBoolean)
    seed = _param("seed", "seed of initial weights, shuffling and dropout", _whole("seed", 0))
    optimizer = _param("optimizer", "name, config or object of Keras", _optimizer)
    learningRate = _param(  # noqa: N815
        "learningRate", "learning rate of any optimizer", _number("learningRate", positive=True)
    )
    loss = _param("loss", "name, config, object or function; or one for each output", _loss)
    metrics = _param("metrics", "list of metrics, or a dict by output", _metrics)
    callbacks = _param(
        "callbacks", "list of Keras callbacks, or a function that returns one", _callbacks
    )
    checkpointDir = _param(  # noqa: N815
        "checkpointDir",
        "folder on the driver: a failed fit continues from its last checkpoint there",
        TypeConverters.toString,
    )
    gpus = _param("gpus", "GPUs of each worker", _gpus)
    backend = _param("backend", f"backend of Keras 3: {', '.join(BACKENDS)}", _backend)
    distributor = _param(
        "distributor", "other options of TensorflowDistributor, as a dict", _distributor
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(
            numWorkers=1, epochs=1, batchSize=32, shuffle=True, backend=BACKENDS[0], distributor={}
        )
