"""Predictions for DataFrames: ``gridflow.predict``."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

import cloudpickle

from gridflow._agent.folder import temporary_folder
from gridflow._feed.ingest import packing
from gridflow._feed.ingest.base import quoted
from gridflow._launch.spark.session import classic_context
from gridflow._spec import jvm
from gridflow.errors import InvalidArgument, SchemaError, did_you_mean
from gridflow.ml import predict as udf
from gridflow.ml.inference.process import Asked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from gridflow._spec import backends
    from gridflow.ml.serving import ServedModel

_LOG: Final = logging.getLogger(__name__)
#: Rows of a batch at least, of which small batches for the model are cut.
_LEAST_ROWS: Final = 8192
#: A column, or several of numbers that are stacked into an input.
_Columns = str | Sequence[str]
#: Since Spark 4.2, Python UDFs on Arrow take a file's columns as they are, and fail if a vector is
#: among them, also one that they don't use: "UNSUPPORTED_DATATYPE".
_TAKES_COLUMNS: Final = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
#: Sessions whose log has said why they take the slower way.
_told: Final[set[str]] = set()


def predict(
    frame: DataFrame,
    model: Any,
    *,
    columns: Sequence[str] | Mapping[str, _Columns] | None = None,
    prediction: str = "prediction",
    inputs: Sequence[str] | Mapping[str, Sequence[int | None]] | None = None,
    outputs: str | Sequence[str] | Mapping[str, str | DataType] | DataType | None = None,
    batch_size: int = 1024,
    nulls: Literal["error", "null"] = "error",
    signature: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    backend: backends.Backend | None = None,
    map: Callable[..., Any] | None = None,  # noqa: A002 (as ctx.dataset has it)
) -> DataFrame:
    """Return a DataFrame with a column more: the model's predictions.

    The model is loaded once for each executor, in a process of its own that all of the executor's
    tasks share.

    Parameters
    ----------
    frame : DataFrame
        A batch or a streaming DataFrame.
    model
        As for `predict_udf`: a model of Keras 3 or tf_keras, ``result.model``, the path of a
        ``.keras`` file or of a SavedModel's folder, or a function that makes a predict function.
    columns : sequence of str or mapping of str to str or list of str, optional
        The columns in the order of the model's inputs, or a column for each input by its name. A
        model with a single flat input also takes several columns of numbers, which are stacked
        into it: ``["x1", "x2"]`` or ``{"x": ["x1", "x2"]}``. Default: the columns with the names
        of the inputs.
    prediction : str, default "prediction"
        The new column. The frame must not have a column of that name.
    inputs, outputs, batch_size, nulls, signature, custom_objects, safe_mode, backend, map
        As for `predict_udf`.

    Returns
    -------
    DataFrame
        The frame's columns and, last, the predictions. Nothing is computed before it is used. The
        number and order of rows don't change.

    Raises
    ------
    InvalidArgument
        An option is invalid, or the columns don't fit the inputs.
    SchemaError
        The frame lacks a column, or has one of the prediction's name.
    GridflowError
        The model can't be loaded here; the message says what is missing.

    Notes
    -----
    Spark Connect, and sessions that can't use gridflow's jar, predict with `predict_udf`: the same
    values, but slower.

    Examples
    --------
    >>> gridflow.predict(df, "/models/flights.keras", columns=["x"])  # doctest: +SKIP
    >>> gridflow.predict(df, model, columns={"age": "age", "city": "home"})  # doctest: +SKIP
    """
    _check_frame(frame)
    served = udf.serve(
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
        spark=frame.sparkSession,
    )
    _check_name(frame, prediction)
    names, widths = _arranged(served.model, columns)
    for name in names:
        _check_column(frame, name, columns is None)
    served = replace(served, model=replace(served.model, widths=widths))
    return with_predictions(frame, served, [_column(frame, name) for name in names], prediction)


def with_predictions(
    frame: DataFrame, served: udf.Served, columns: Sequence[Column], name: str
) -> DataFrame:
    """Return the frame with a column of predictions, the fast way if the session supports it."""
    java = _java(frame, served)
    if java is None:
        _let_vectors_pass(frame)
        return frame.withColumn(name, udf.column_function(served)(*columns))
    from pyspark.sql import DataFrame as Frame

    asked = cloudpickle.dumps(Asked(served.model, served.batch_size, served.nulls))
    rows = served.batch_size * max(1, _LEAST_ROWS // served.batch_size)
    given = [jvm.java_column(column) for column in columns]
    found = java.frame(
        jvm.java_frame(frame),
        given,
        name,
        bytearray(asked),
        rows,
        served.batch_size,
        served.kind.json(),
    )
    return Frame(found, frame.sparkSession)


def _java(frame: DataFrame, served: udf.Served) -> Any:
    """Return Java's half of a model; None if the session can't use gridflow's classes."""
    spark = frame.sparkSession
    context = classic_context(spark)
    has_memory = sys.platform == "linux"  # memory without a name, which both sides open
    if context is None or not has_memory or not packing.can_pack(spark):
        _say_once(spark)
        return None
    described = _described(served.model)
    environment = {str(name): str(value) for name, value in context.environment.items()}
    parts = (described, context.pythonExec, sorted(environment.items()))
    key = hashlib.sha256(cloudpickle.dumps(parts)).hexdigest()
    with temporary_folder("gridflow-model-") as folder:
        file = folder / "content"
        file.write_bytes(served.content)
        try:
            return jvm.classes(spark).io.gridflow.inference.Predictions(
                jvm.java_session(spark),
                served.title,
                key,
                context.pythonExec,
                environment,
                list(context._python_includes),  # noqa: SLF001 (as above)
                bytearray(cloudpickle.dumps(described)),
                str(file),
            )
        except TypeError:  # no class: the session was made with the jar of an older release
            _say_once(spark)
            return None


def _described(model: ServedModel) -> ServedModel:
    """Return what a model's process depends on, but not what queries ask of it."""
    chosen = model.chosen if model.kind == "function" else {}
    return replace(model, chosen=chosen, is_struct=False, widths=(), decode=b"")


def _say_once(spark: Any) -> None:
    name = str(getattr(spark, "session_id", None) or id(spark))
    if name not in _told:
        _told.add(name)
        _LOG.warning(
            "gridflow.predict uses predict_udf in this session, which can't use gridflow's jar "
            "(Spark Connect, or a cluster that forbids it): the same predictions, but slower"
        )


def _check_frame(frame: Any) -> None:
    if not hasattr(frame, "sparkSession") or not hasattr(frame, "columns"):
        raise InvalidArgument(
            f"gridflow.predict takes a DataFrame and a model, in this order; got a "
            f"{type(frame).__name__} as the DataFrame."
        )


def _check_name(frame: DataFrame, name: str) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"prediction= must be the name of the new column; got {name!r}.")
    told = _told_apart(frame)
    for there in frame.columns:
        if told(there) == told(name):
            raise SchemaError(
                f"the DataFrame has a column {there!r} already, where predictions would go. Drop "
                "or rename it, or choose another name with prediction=."
            )


def _told_apart(frame: DataFrame) -> Callable[[str], str]:
    """Return by what of their names Spark tells columns apart."""
    is_sensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    return str if is_sensitive else str.lower


def _arranged(
    model: ServedModel, columns: Sequence[str] | Mapping[str, _Columns] | None
) -> tuple[list[str], tuple[int, ...]]:
    """Return the columns in the order of the inputs, and how many each input takes."""
    if columns is None and not model.inputs:
        raise InvalidArgument(
            "columns= must name the columns for a function's parameters, in their order."
        )
    if columns is None:
        columns = list(model.inputs)
    if isinstance(columns, str) or not isinstance(columns, Sequence | Mapping):
        raise InvalidArgument(
            "columns= must be a list of columns, ['x'], or a dict of the model's inputs to their "
            f"columns, {{'input': 'x'}}; got {columns!r}."
        )
    if not isinstance(columns, Mapping):
        names = list(columns)
        udf.arranged(names, {}, model.inputs)
        return names, ()
    inputs = model.inputs or dict.fromkeys(columns)
    by_name = {
        name: [place] if isinstance(place, str) else list(place) for name, place in columns.items()
    }
    for name, places in by_name.items():
        if not places:
            raise InvalidArgument(f"columns= gives the input {name!r} no column.")
    if model.inputs:
        udf.arranged((), by_name, model.inputs)
    widths = tuple(len(by_name[name]) for name in inputs)
    return [place for name in inputs for place in by_name[name]], widths


def _check_column(frame: DataFrame, name: Any, is_default: bool) -> None:
    told = _told_apart(frame)
    there = {told(each) for each in frame.columns}
    if isinstance(name, str) and (told(name) in there or told(name.split(".")[0]) in there):
        return
    hint = " Name the columns for the model's inputs with columns=." if is_default else ""
    raise SchemaError(
        f"the DataFrame has no column {name!r}; it has {', '.join(map(repr, frame.columns))}."
        f"{did_you_mean(str(name), frame.columns)}{hint}"
    )


def _column(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as f

    is_field = name not in frame.columns and "." in name
    return f.col(name if is_field else quoted(name))


def _let_vectors_pass(dataset: DataFrame) -> None:
    """Turn the session's `_TAKES_COLUMNS` off if a column has a type such as a vector."""
    from pyspark.sql.types import UserDefinedType

    if any(isinstance(each.dataType, UserDefinedType) for each in dataset.schema):
        dataset.sparkSession.conf.set(_TAKES_COLUMNS, "false")
