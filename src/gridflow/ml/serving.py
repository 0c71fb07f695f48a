"""Prediction inside Spark's Python workers: load a model once, feed it columns, return columns."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridflow._agent.folder import temporary_folder
from gridflow._spec import backends
from gridflow._spec.backends import KERAS_VARIABLE
from gridflow.errors import DataError, GridflowError, InvalidArgument, MissingDependency
from gridflow.ml import columns as arrow
from gridflow.ml import task_gpu
from gridflow.ml.decoding import decoder_of
from gridflow.ml.model_broadcast import unzip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from gridflow.ml.columns import Slot
    from gridflow.ml.model_broadcast import Parcel

    #: Takes the inputs in order, returns the outputs by name.
    Predict = Callable[[Sequence[np.ndarray]], Mapping[str, Any]]

#: Models that a Python worker keeps across tasks. A query may use several.
_KEPT: Final = 3
_loaded: OrderedDict[tuple[Any, ...], Predict] = OrderedDict()
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class ServedModel:
    """A model as sent to a Python worker.

    `kind`: ``"keras"`` or ``"tf_keras"``: the parcel is a ``.keras`` file; ``"saved_model"``: a
        folder; ``"function"``: a pickled function that makes a function.
    `inputs` (dict of str to Slot): In the order of the columns.
    `outputs` (tuple of str): Names of all outputs, in order.
    `chosen` (dict of str to pyarrow.DataType): The requested outputs, and the types of their
        columns.
    `is_struct`: Whether they are the fields of one struct column.
    `options`: Pickled arguments for loading.
    `backend`: Of Keras 3.
    `arguments` (tuple of str): The inputs in the model's own order.
    `structure`: How a Keras model takes its inputs: ``"one"``, ``"list"`` or ``"dict"``.
    `decode`: A pickled function that the columns of a batch go through first; empty: none.
    `widths` (tuple of int): How many columns are stacked into each input. Default: all into a
        single input, or one each.
    """

    kind: str
    parcel: Parcel
    inputs: dict[str, Slot]
    outputs: tuple[str, ...]
    chosen: dict[str, pa.DataType]
    is_struct: bool
    options: bytes
    backend: str | None = None
    arguments: tuple[str, ...] = ()
    structure: str = "one"
    decode: bytes = b""
    widths: tuple[int, ...] = ()


def predictions(
    model: ServedModel, batches: Iterator[Any], batch_size: int, nulls: str
) -> Iterator[pa.Array]:
    """Yield a column of predictions for each batch of columns, in the same order of rows.

    `batches` (iterator of pyarrow.Array or tuple of them): As passed by Spark: a tuple if there are
        several columns.
    `batch_size`: Maximum rows per call of the model.
    """
    with task_gpu.device(model.kind) as device:
        predict = _load(model, device)
        for batch in batches:
            columns = batch if isinstance(batch, tuple) else (batch,)
            yield predicted(model, predict, columns, batch_size, nulls)


def predicted(
    model: ServedModel,
    predict: Predict,
    columns: Sequence[pa.Array],
    batch_size: int,
    nulls: str,
) -> pa.Array:
    """Return the column of predictions for columns of rows."""
    null = arrow.is_null(columns) if nulls == "null" else None
    if null is not None:
        columns = tuple(column.filter(~null) for column in columns)
    found = _predicted(model, predict, columns, batch_size)
    return found if null is None else arrow.scattered(found, null)


def _predicted(
    model: ServedModel, predict: Predict, columns: Sequence[pa.Array], batch_size: int
) -> pa.Array:
    import pyarrow as pa

    rows = len(columns[0])
    parts: dict[str, list[pa.Array]] = {name: [] for name in model.chosen}
    inputs = _inputs(model, columns) if rows else []
    decode = decoder_of(model.decode, model.inputs, model.backend)
    is_padded = model.backend is not None and backends.of(model.backend).compiles_each_size
    for first in range(0, rows, batch_size):
        given = decode([array[first : first + batch_size] for array in inputs])
        count = len(given[0])
        if is_padded:
            given = [arrow.padded(array, batch_size) for array in given]
        outputs = predict(given)
        for name, kind in model.chosen.items():
            if name not in outputs:
                there = ", ".join(repr(each) for each in outputs)
                raise InvalidArgument(
                    f"the model returned no output {name!r}; it returned {there}."
                )
            part = arrow.to_column(outputs[name], kind, name)
            if len(part) != len(given[0]):
                raise DataError(
                    f"the output {name!r} has {len(part)} rows for {len(given[0])} rows of inputs; "
                    "each row needs a prediction."
                )
            parts[name].append(part[:count])
    whole = {
        name: pa.concat_arrays(parts[name]) if parts[name] else pa.array([], kind)
        for name, kind in model.chosen.items()
    }
    if not model.is_struct:
        return next(iter(whole.values()))
    return pa.StructArray.from_arrays(
        list(whole.values()), fields=[pa.field(name, kind) for name, kind in model.chosen.items()]
    )


def _inputs(model: ServedModel, columns: Sequence[pa.Array]) -> list[np.ndarray]:
    named = model.inputs or {str(place): arrow.Slot() for place in range(len(columns))}
    widths = model.widths or ((len(columns),) if len(named) == 1 else (1,) * len(named))
    if sum(widths) != len(columns):
        raise InvalidArgument(
            f"the model has {len(named)} inputs ({', '.join(named)}), got {len(columns)} columns."
        )
    found, left = [], list(columns)
    for (name, slot), width in zip(named.items(), widths, strict=True):
        own, left = left[:width], left[width:]
        if width > 1 and slot.shape is not None and slot.shape not in ((width,), (None,)):
            raise InvalidArgument(
                f"the model's input {name!r} takes rows of the shape {slot}; got {width} columns."
            )
        if width > 1:
            found.append(arrow.stacked(own, slot, name))
        else:  # what decodes it brings the form
            found.append(arrow.to_input(own[0], arrow.Slot() if model.decode else slot, name))
    return found


def _load(model: ServedModel, device: int | None) -> Predict:
    """Return the model's predict function; the first task of a worker loads it."""
    chosen = tuple(model.chosen) if model.kind == "function" else ()
    named = (tuple(model.inputs), model.arguments, model.outputs, chosen)
    key = (model.parcel.key, model.kind, model.options, model.backend, named, device)
    with _lock:
        if key not in _loaded:
            _loaded[key] = load(model, device)
            while len(_loaded) > _KEPT:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]


def load(model: ServedModel, device: int | None = None) -> Predict:
    """Return a model's predict function."""
    return _LOADERS[model.kind](model, device)


def _load_keras(model: ServedModel, device: int | None) -> Predict:
    import cloudpickle

    from gridflow._keras import results

    _choose_backend(model)
    header = {"kind": model.kind, "files": ["model.keras"]}
    scope = task_gpu.scope(model.kind, device)
    with scope(), temporary_folder("gridflow-model-") as folder:  # removed even after a kill
        (folder / "model.keras").write_bytes(model.parcel.open())
        loaded = results.unpack(header, folder, cloudpickle.loads(model.options))
    names = list(model.inputs)
    there = list(results.declared(loaded, "input"))
    # Keras names inputs without a name anew; those of a list are in the same order.
    is_same = not there or set(there) == set(names)
    keys = dict(zip(model.arguments, model.arguments if is_same else there, strict=True))

    def predict(given: Sequence[np.ndarray]) -> Mapping[str, Any]:
        x: Any = given[0]
        if model.structure == "dict":
            x = {keys[name]: array for name, array in zip(names, given, strict=True)}
        elif model.structure == "list":
            by_name = dict(zip(names, given, strict=True))
            x = [by_name[name] for name in model.arguments]
        with scope():
            return _named(loaded.predict_on_batch(x), model.outputs)

    return predict


def _load_saved_model(model: ServedModel, device: int | None) -> Predict:
    import cloudpickle
    import tensorflow as tf

    from gridflow._keras import safe_mode

    options = cloudpickle.loads(model.options)
    scope = task_gpu.scope(model.kind, device)
    with scope(), temporary_folder("gridflow-model-") as folder:
        unzip(model.parcel.open(), folder)
        loaded = safe_mode.load_saved_model(
            str(folder), options["tags"], is_safe=options["safe_mode"]
        )
    function = loaded.signatures[options["signature"]]
    names = list(model.inputs)

    def predict(given: Sequence[np.ndarray]) -> Mapping[str, Any]:
        _ = loaded  # keeps its variables and tables alive
        with scope():
            tensors = {name: tf.constant(array) for name, array in zip(names, given, strict=True)}
            return {name: value.numpy() for name, value in function(**tensors).items()}

    return predict


def _load_function(model: ServedModel, _device: int | None) -> Predict:
    import cloudpickle

    function = cloudpickle.loads(model.parcel.open())()
    if not callable(function):
        raise InvalidArgument(
            f"the function passed to predict_udf returned {type(function).__name__}; it must "
            "return a predict function."
        )
    signature = inspect.signature(lambda *_: None)  # some callables written in C have none
    with contextlib.suppress(ValueError):
        signature = inspect.signature(function)

    def predict(given: Sequence[np.ndarray]) -> Mapping[str, Any]:
        try:
            signature.bind(*given)  # parameters with defaults may be left out
        except TypeError as error:
            reason = f"the function takes {signature}, got {len(given)} columns."
            raise InvalidArgument(reason) from error
        found, names = _by_name(function(*given)), tuple(model.chosen)
        if isinstance(found, list) and len(found) == len(names) == 1:
            # The only row of a batch, or all rows of the only output.
            is_output = getattr(found[0], "shape", ())[:1] == (len(given[0]),)
            found = found[0] if is_output else np.asarray(found)
        return _named(found, names)

    return predict


_LOADERS: Final = {
    "keras": _load_keras,
    "tf_keras": _load_keras,
    "saved_model": _load_saved_model,
    "function": _load_function,
}


def _by_name(found: Any) -> Any:
    """Convert a list of dicts, which a function may return, to a dict of arrays."""
    if isinstance(found, list) and found and isinstance(found[0], dict):
        return {name: np.asarray([row[name] for row in found]) for name in found[0]}
    return found


def _named(found: Any, names: Sequence[str]) -> Mapping[str, Any]:
    if isinstance(found, dict):
        return found
    if isinstance(found, list | tuple) and len(names) > 1:
        if len(found) != len(names):
            raise DataError(f"the model returned {len(found)} outputs, not {len(names)}.")
        return dict(zip(names, found, strict=True))
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    return {names[0] if names else "output": found}


def _choose_backend(model: ServedModel) -> None:
    """Import Keras 3 with the model's backend.

    Raises `GridflowError`: Another task of this worker has imported it with another backend.
    """
    if model.backend is None:
        return
    if "keras" not in sys.modules:
        os.environ[KERAS_VARIABLE] = model.backend
        try:
            importlib.import_module("keras")
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"the model needs {model.backend}, but the executors' Python has no {error.name}: "
                f"pip install 'gridflow[{model.backend}]'."
            ) from error
    there = sys.modules["keras"].config.backend()
    if there != model.backend:
        raise GridflowError(
            f"Keras runs on {there} in this Spark Python worker, but the model needs "
            f"{model.backend}. Pass backend={there!r} to predict_udf if the model supports it, or "
            f"start the application with spark.executorEnv.{KERAS_VARIABLE}={model.backend}."
        )
