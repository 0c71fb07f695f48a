"""Any model as a function of columns: ``gridflow.predict_udf``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from gridflow._feed.ingest import packing
from gridflow._spec import backends
from gridflow._spec.option_checks import choose, whole_number
from gridflow._spec.program import dump_by_value
from gridflow.errors import InvalidArgument, did_you_mean
from gridflow.ml import model_broadcast, servable
from gridflow.ml.columns import Slot
from gridflow.ml.serving import ServedModel, predictions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from gridflow.ml.servable import Servable

_NULLS: Final = ("error", "null")


def predict_udf(
    model: Any,
    *,
    inputs: Sequence[str] | Mapping[str, Sequence[int | None]] | None = None,
    outputs: str | Sequence[str] | Mapping[str, str | DataType] | DataType | None = None,
    batch_size: int = 1024,
    nulls: Literal["error", "null"] = "error",
    signature: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    backend: backends.Backend | None = None,
    map: Callable[..., Any] | None = None,  # noqa: A002 (as ctx.dataset has it)
) -> Any:
    """Return a function of columns that predicts, for DataFrames, streams and SQL.

    Parameters
    ----------
    model
        One of:

        * a model of Keras 3 or tf_keras, or ``result.model``;
        * the path of a ``.keras`` file or of any SavedModel's folder, also on a file system that
          pyarrow supports (``hdfs://``, ``s3://``, ``gs://``);
        * a function without arguments that returns a predict function, as in
          `pyspark.ml.functions.predict_batch_udf`: it takes an array with a batch's rows for each
          column, and returns an array, a dict of arrays, or a list of dicts. Needs ``outputs``.
    inputs : sequence of str or mapping of str to shape, optional
        The model's inputs in the order of the columns. A mapping sets the shape of a row, without
        the batch axis, if the model doesn't: ``{"image": (28, 28), "age": ()}``. For a
        function you can choose the names, and arrays keep their shape unless you set one.
    outputs : str, sequence of str, or mapping of str to Spark type, optional
        The outputs to return: one name for a column, a sequence or mapping for a struct; a mapping
        also sets the types. Default: all of them, as a struct if there are several. For a
        function: the Spark type of its result, ``"float"``, ``"array<float>"`` or
        ``"struct<label: int, p: array<float>>"``.
    batch_size : int, default 1024
        The maximum number of rows per call of the model.
    nulls : {"error", "null"}, default "error"
        How to handle rows with a null in a column or inside an array. ``"error"``: the query
        fails, except that a null in plain numbers for a floating-point input becomes NaN.
        ``"null"``: the prediction is null, and the model doesn't see the row.
    signature : str, optional
        Of a SavedModel. Default: its only one, or ``"serving_default"``.
    custom_objects, safe_mode
        As for Keras's ``load_model``. Custom objects are sent to the executors; of a model object
        its own class and those of its layers are, too. Safe mode also refuses files of tf_keras and
        SavedModels that could do more than compute.
    backend : {"tensorflow", "jax", "torch"}, optional
        Keras 3's backend on the executors. Default: this process's, or the model's own.
    map : callable, optional
        A function that a batch's columns go through before the model, such as
        `gridflow.data.image_decoder`: as ``map=`` of ``ctx.dataset``, with ``x`` alone. ``x`` is a
        tensor (under JAX and torch an array), or a dict of them by input if the model has several.

    Returns
    -------
    function
        Takes one column for each input, in order or by the inputs' names; a model with a single
        flat input also takes several columns of numbers, which are stacked into it. Arrays, flat
        ones as well, become the rows of the input; vectors of Spark ML, strings and binaries
        (images) are passed unchanged. An output of one number per row is a column of that type;
        others are arrays, nested as deep as the output has axes. ``spark.udf.register`` accepts
        the function too. The order and number of rows don't change.

    Raises
    ------
    InvalidArgument
        An option is invalid; the returned function raises it if columns don't fit the inputs.
    GridflowError
        The model can't be loaded here; the message says what is missing.

    Notes
    -----
    Each Python worker of Spark loads the model once and keeps the last three for its next tasks.
    If Spark assigns GPUs to tasks (``spark.task.resource.gpu.amount``), each task predicts on its
    own; otherwise on CPUs, unless the executors' ``CUDA_VISIBLE_DEVICES`` says something else.

    Examples
    --------
    >>> predict = gridflow.predict_udf("/models/flights.keras")  # doctest: +SKIP
    >>> df.withColumn("p", predict("x"))  # doctest: +SKIP
    >>> spark.udf.register("delay", predict)  # doctest: +SKIP
    >>> spark.sql("SELECT delay(x) FROM flights")  # doctest: +SKIP
    """
    served = serve(
        model,
        inputs=inputs,
        outputs=outputs,
        batch_size=batch_size,
        nulls=nulls,
        signature=signature,
        custom_objects=custom_objects,
        safe_mode=safe_mode,
        backend=backend,
        map=map,
    )
    return column_function(served)


@dataclass(frozen=True)
class Served:
    """A model that was checked, and what is asked of it.

    Attributes
    ----------
    model : ServedModel
        Without content.
    content : bytes
        Of its file or folder.
    title : str
        What plans and logs call it.
    kind : DataType
        The type of a prediction.
    batch_size : int
    nulls : {"error", "null"}
    spark : SparkSession
    """

    model: ServedModel
    content: bytes
    title: str
    kind: DataType
    batch_size: int
    nulls: str
    spark: SparkSession


def serve(
    model: Any,
    *,
    inputs: Any = None,
    outputs: Any = None,
    batch_size: int = 1024,
    nulls: str = "error",
    signature: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    backend: backends.Backend | None = None,
    map: Callable[..., Any] | None = None,  # noqa: A002 (as ctx.dataset has it)
    spark: SparkSession | None = None,
) -> Served:
    """Check a model and what is asked of it; the parameters are those of `predict_udf`."""
    whole_number("batch_size", batch_size, 1)
    choose("nulls", nulls, _NULLS)
    if backend is not None:
        choose("backend", backend, backends.BACKENDS)
    if map is not None and not takes_x_alone(map):
        raise InvalidArgument(
            f"map= must be a function of x alone (def decode(x, *others)); got {map!r}."
        )
    given = servable.of(model, custom_objects, safe_mode, signature, backend)
    if map is not None and given.kind == "function":
        raise InvalidArgument("map= is for models; a function decodes its arguments itself.")
    slots = _slots(given, inputs)
    from gridflow._launch.spark.session import (
        arrow_type,
        run_this_python_where_it_can,
        session_of,
    )

    spark = spark or session_of()
    run_this_python_where_it_can(spark)
    kinds, is_struct = _chosen(given, outputs)
    asked = ServedModel(
        kind=given.kind,
        parcel=model_broadcast.Parcel(model_broadcast.key_of(given.content)),
        inputs=slots,
        outputs=tuple(given.outputs),
        chosen={name: arrow_type(kind) for name, kind in kinds.items()},
        is_struct=is_struct,
        options=given.options,
        backend=backend or given.backend,
        arguments=tuple(given.inputs),
        structure=given.structure,
        decode=b"" if map is None else dump_by_value(map),
    )
    kind = _return_type(kinds, is_struct)
    return Served(asked, given.content, _title(model), kind, batch_size, nulls, spark)


def _title(model: Any) -> str:
    """Return what a model is called: its file's name, its own, or that of its function."""
    path = getattr(model, "path", model)
    if isinstance(path, str | Path):
        return str(path).rstrip("/").rpartition("/")[2]
    name = getattr(model, "name", None) or getattr(model, "__name__", None)
    return str(name or type(model).__name__)


def column_function(served: Served) -> Any:
    """Return Spark's function of columns that predicts."""
    parcel = model_broadcast.send(served.content, served.spark)
    sent = replace(served.model, parcel=parcel)
    made = _made(sent, served.kind, served.batch_size, served.nulls)
    return _checked(made, sent.inputs, served.spark, sent.backend, packs=not sent.decode)


def takes_x_alone(function: Any) -> bool:
    """Return whether a function of batches can be called with ``x`` alone, as predictions have."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # some callables written in C have no signature
        pass
    return callable(function)


def _slots(
    given: Servable, inputs: Sequence[str] | Mapping[str, Sequence[int | None]] | None
) -> dict[str, Slot]:
    """Return the model's inputs in the order of the columns."""
    if inputs is None:
        return dict(given.inputs)
    if isinstance(inputs, str) or not all(isinstance(name, str) for name in inputs):
        raise InvalidArgument(
            "inputs= must be a list of input names, or a mapping of names to shapes; got "
            f"{inputs!r}."
        )
    shapes = inputs if isinstance(inputs, Mapping) else {}
    said = {name: _shape(name, shape) for name, shape in shapes.items()}
    if not given.inputs:
        return {name: Slot(said.get(name)) for name in inputs}
    servable.check_names("input", inputs, given.inputs)
    missing = ", ".join(repr(name) for name in given.inputs if name not in inputs)
    if missing:
        raise InvalidArgument(f"inputs= lacks {missing}: a model needs all of its inputs.")
    slots = {}
    for name in inputs:
        own, shape = given.inputs[name], said.get(name)
        if shape is not None and own.shape is not None:
            fits = len(shape) == len(own.shape) and all(
                size in (None, new) for size, new in zip(own.shape, shape, strict=True)
            )
            if not fits:
                raise InvalidArgument(
                    f"inputs= sets the shape {Slot(shape)} for {name!r}, but the model takes {own}."
                )
        slots[name] = own if shape is None else Slot(shape, own.dtype)
    return slots


def _shape(name: str, shape: Any) -> tuple[int | None, ...]:
    is_shape = isinstance(shape, list | tuple) and all(
        size is None or (isinstance(size, int) and size >= 0) for size in shape
    )
    if not is_shape:
        raise InvalidArgument(
            "inputs= must give the shape of a row as whole numbers, such as (28, 28), or () for "
            f"one number; got {shape!r} for {name!r}."
        )
    return tuple(shape)


def _chosen(given: Servable, outputs: Any) -> tuple[dict[str, DataType], bool]:
    """Return the types of the requested outputs, and whether they form a struct."""
    from pyspark.sql.types import DataType, StructType

    if given.kind == "function":
        if not isinstance(outputs, str | DataType):
            raise InvalidArgument(
                "for a function, outputs= must be the Spark type of its result, such as 'float', "
                f"'array<float>' or 'struct<label: int, p: float>'; got {outputs!r}."
            )
        kind = _data_type(outputs)
        if isinstance(kind, StructType):
            return {field.name: field.dataType for field in kind}, True
        return {"output": kind}, False
    if outputs is None:
        names = list(given.outputs)
    elif isinstance(outputs, str):
        names = [outputs]
    elif isinstance(outputs, Sequence | Mapping) and len(outputs):
        names = list(outputs)
    else:
        raise InvalidArgument(
            "outputs= must be the name of an output, a list of names, or a mapping of names to "
            f"Spark types; got {outputs!r}."
        )
    servable.check_names("output", names, given.outputs)
    if len(set(names)) < len(names):
        raise InvalidArgument(f"outputs= names an output twice: {names!r}.")
    types = outputs if isinstance(outputs, Mapping) else {}
    kinds = {name: _data_type(types.get(name) or given.outputs[name].spark_type) for name in names}
    return kinds, len(names) > 1 if outputs is None else not isinstance(outputs, str)


def _data_type(kind: str | DataType) -> DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import DataType

    if isinstance(kind, DataType):
        return kind
    if not isinstance(kind, str):
        raise InvalidArgument(f"{kind!r} in outputs= is not a Spark type, such as 'double'.")
    try:
        return DataType.fromDDL(kind)
    except PySparkException as error:
        raise InvalidArgument(f"{kind!r} in outputs= is not a Spark type: {error}") from error


def _return_type(kinds: Mapping[str, DataType], is_struct: bool) -> DataType:
    from pyspark.sql.types import StructField, StructType

    if not is_struct:
        return next(iter(kinds.values()))
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def _made(model: ServedModel, kind: DataType, batch_size: int, nulls: str) -> Any:
    """Return Spark's function, of Arrow arrays, or before Spark 4.1 of pandas columns."""
    import pyarrow as pa
    from pyspark.sql import functions

    if not hasattr(functions, "arrow_udf"):
        from gridflow.ml.with_pandas import pandas_function

        return pandas_function(model, kind, batch_size, nulls)

    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        columns = (batch if isinstance(batch, tuple) else (batch,) for batch in batches)
        unpacked = (tuple(packing.unpacked(column) for column in batch) for batch in columns)
        return predictions(model, unpacked, batch_size, nulls)

    # As objects: Spark can't resolve this module's type names.
    from collections.abc import Iterator as It

    predict.__annotations__ = {"batches": It[tuple[pa.Array, ...]], "return": It[pa.Array]}
    return functions.arrow_udf(predict, kind)


def _checked(
    made: Any, inputs: Mapping[str, Slot], spark: SparkSession, backend: Any, *, packs: bool
) -> Any:
    """Return Spark's function with a check of its columns at the call."""
    from pyspark.sql import functions

    from gridflow._launch.spark.session import worker_environment

    takes_arrow = packs and hasattr(functions, "arrow_udf")
    variables = {} if backend is None else {backends.KERAS_VARIABLE: backend}

    @functools.wraps(made)  # with its attributes, for spark.udf.register()
    def predict(*columns: Any, **by_input: Any) -> Any:
        given = arranged(columns, by_input, inputs)
        if len(given) == len(inputs) and takes_arrow and packing.can_pack(spark):
            slots = inputs.values()
            given = [
                packing.pack(column) if slot.is_vector else column
                for column, slot in zip(given, slots, strict=True)
            ]
        with worker_environment(spark, variables):
            return made(*given)

    return predict


def arranged(
    columns: Sequence[Any], by_input: Mapping[str, Any], inputs: Mapping[str, Slot]
) -> Sequence[Any]:
    """Return the columns in the order of the inputs.

    Raises
    ------
    InvalidArgument
        They don't match the inputs.
    """
    if not inputs:  # a function that isn't created yet
        if by_input or not columns:
            raise InvalidArgument(
                "pass at least one column, in the order of the function's parameters; names need "
                "inputs=."
            )
        return columns
    names = ", ".join(repr(name) for name in inputs)
    if columns and by_input:
        raise InvalidArgument(
            f"pass the model's columns in the order of its inputs ({names}) or all by name; got "
            f"{len(columns)} in order and {', '.join(map(repr, by_input))} by name."
        )
    if by_input:
        for name in by_input:
            if name not in inputs:
                raise InvalidArgument(
                    f"the model has no input {name!r}; it has {names}.{did_you_mean(name, inputs)}"
                )
        missing = ", ".join(repr(name) for name in inputs if name not in by_input)
        if missing:
            raise InvalidArgument(f"the model's inputs {missing} got no column.")
        return [by_input[name] for name in inputs]
    (slot, *others) = inputs.values()
    width = slot.shape[0] if slot.shape is not None and len(slot.shape) == 1 else 1
    is_flat = not others and slot.shape is not None and len(slot.shape) == 1
    if len(columns) == len(inputs) or (is_flat and columns and width in (None, len(columns))):
        return columns
    stacked = f", or {width} columns of numbers" if is_flat and width != 1 else ""
    raise InvalidArgument(
        f"the model takes one column for each of its inputs ({names}){stacked}; got {len(columns)}."
    )
