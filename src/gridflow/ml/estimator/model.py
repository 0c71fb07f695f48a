"""`KerasModel`: what `KerasEstimator` fits."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLWritable

from gridflow._feed.ingest.base import quoted
from gridflow._feed.selection import named
from gridflow.errors import InvalidArgument, SchemaError
from gridflow.ml.estimator import columns, persistence, shapes
from gridflow.ml.estimator.params import PredictionParams, with_accessors
from gridflow.ml.inference.frames import with_predictions
from gridflow.ml.predict import arranged, serve, takes_x_alone

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from gridflow.ml.estimator.summary import KerasTrainingSummary
    from gridflow.ml.model import TrainedModel


@with_accessors
class KerasModel(PredictionParams, Model, MLReadable["KerasModel"], MLWritable):
    """A Keras model as a stage of Spark ML, returned by `KerasEstimator.fit`.

    ``transform`` keeps all columns and adds the predictions, also on streams. It is saved with its
    ``.keras`` file, alone or within a ``PipelineModel``, on any file system that Spark supports.

    Attributes
    ----------
    trainedModel : TrainedModel
        The Keras model: ``fitted.trainedModel.load()`` loads it, ``save(path)`` copies its file.
    hasSummary : bool
    summary : KerasTrainingSummary
        History and ledger of the fit, and their ``plot()``; saved and loaded with the model.
    """

    def __init__(self, trained: TrainedModel, summary: KerasTrainingSummary | None = None) -> None:
        super().__init__()
        self.trainedModel = trained
        self._summary = summary

    @property
    def hasSummary(self) -> bool:  # noqa: N802 (Spark's name)
        """Whether there is a summary of the fit."""
        return self._summary is not None

    @property
    def summary(self) -> KerasTrainingSummary:
        """The summary of the fit.

        Raises
        ------
        RuntimeError
            There is no summary, as in Spark's models.
        """
        if self._summary is None:
            raise RuntimeError("No training summary available for this KerasModel")
        return self._summary

    def write(self) -> persistence.ParamsWriter:
        """Return a writer: ``model.write().overwrite().save(path)``."""
        return persistence.ModelWriter(self)

    @classmethod
    def read(cls) -> persistence.ModelReader[KerasModel]:
        """Return a reader: ``KerasModel.read().load(path)``."""
        return persistence.ModelReader(cls)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        outputs = list(self.trainedModel.outputs) or ["output"]
        names = self._output_columns(outputs)
        chosen = (self.given("probabilityCol"), self.given("rawPredictionCol"))
        new = [*dict.fromkeys(names.values()), *(name for name in chosen if name)]
        # As Spark tells columns apart: it would replace one that differs only in case.
        is_sensitive = dataset.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        told = str if is_sensitive else str.lower
        if len({told(name) for name in new}) < len(new):
            raise InvalidArgument(
                "predictionCol, probabilityCol and rawPredictionCol have to differ; got "
                f"{', '.join(map(repr, new))}."
            )
        there = {told(name): name for name in dataset.columns}
        for name in new:
            if told(name) in there:
                raise SchemaError(
                    f"the DataFrame has a column {there[told(name)]!r} already, where predictions "
                    "would go. Drop or rename it, or set predictionCol."
                )
        features = self.getOrDefault("featuresCol")
        columns.check(dataset.columns, named(features), "featuresCol")
        served = serve(
            self.trainedModel,
            batch_size=self.getOrDefault("predictBatchSize"),
            custom_objects=self.given("customObjects"),
            safe_mode=self.getOrDefault("safeMode"),
            map=self._decoder(),
            spark=dataset.sparkSession,
        )
        inputs = arranged((), self._inputs(dataset, features), served.model.inputs)
        # A single name needs no column that is renamed later.
        distinct = set(names.values())
        name = HIDDEN if self._classifies or len(distinct) > 1 else next(iter(distinct))
        rows = with_predictions(dataset, served, inputs, name)
        return self._classified(rows) if self._classifies else self._with_outputs(rows, names)

    def _decoder(self) -> Any:
        """Return the function of batches, if it is one for predictions, too."""
        given = self.given("map")
        return given if given is not None and takes_x_alone(given) else None

    def _output_columns(self, outputs: list[str]) -> dict[str, str]:
        """Return the column of each output; a single name stands for a struct of all."""
        form = self.getOrDefault("predictionCol")
        if self._classifies and (len(outputs) > 1 or not isinstance(form, str)):
            raise InvalidArgument(
                "probabilityCol and rawPredictionCol are for models with one output, and one name "
                f"as predictionCol; the model has the outputs {', '.join(map(repr, outputs))}, "
                f"predictionCol={form!r}."
            )
        if isinstance(form, str):
            return dict.fromkeys(outputs, form)
        if not isinstance(form, Mapping) and len(form) != len(outputs):
            raise InvalidArgument(
                f"predictionCol has {len(form)} names, the model has {len(outputs)} outputs: "
                f"{', '.join(map(repr, outputs))}."
            )
        if not isinstance(form, Mapping):
            return dict(zip(outputs, form, strict=True))
        return {
            name: str(place) for name, place in columns.arranged(form, outputs, "output").items()
        }

    def _inputs(self, dataset: DataFrame, features: Any) -> dict[str, Column]:
        """Return a column for each of the model's inputs."""
        given = self.trainedModel.inputs
        if not given:  # predict_udf finds out what a subclassed model takes
            places = columns.undeclared(features)
            return {name: _input(dataset, place) for name, place in places.items()}
        found = {}
        for name, place in columns.arranged(features, list(given), "input").items():
            found[name] = _input(dataset, place, name, tuple(given[name][1:]))
            size = _assembled_size(dataset, place)
            wanted = given[name][1:]
            if size is not None and len(wanted) == 1 and wanted[0] not in (None, size):
                raise SchemaError(
                    f"column {place!r} holds vectors of {size} numbers, and the model's input "
                    f"{name!r} takes {wanted[0]}."
                )
        return found

    def _with_outputs(self, rows: DataFrame, names: Mapping[str, str]) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        distinct = set(names.values())
        hidden = next(iter(distinct)) if len(distinct) == 1 else HIDDEN
        kind = rows.schema[hidden].dataType
        if not isinstance(kind, StructType):
            return rows.withColumn(hidden, _evaluable(f.col(quoted(hidden)), kind))
        each = {
            field.name: _evaluable(f.col(quoted(hidden)).getField(field.name), field.dataType)
            for field in kind
        }
        if len(distinct) == 1:
            parts = [column.alias(name) for name, column in each.items()]
            return rows.withColumn(hidden, f.struct(*parts))
        added = {names[name]: column for name, column in each.items()}
        return rows.withColumns(added).drop(hidden)

    def _classified(self, rows: DataFrame) -> DataFrame:
        """Return classes and probabilities as Spark's evaluators take them."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as f
        from pyspark.sql.types import ArrayType

        out = f.col(HIDDEN)
        if isinstance(rows.schema[HIDDEN].dataType, ArrayType):
            scores = out.cast("array<double>")
            chances, raw = scores, scores
            most = f.array_max(scores)  # NaN, if there is one
            label = f.array_position(scores, most) - 1
        else:
            score = out.cast("double")
            chances, raw = f.array(1 - score, score), f.array(-score, score)
            most = score
            label = score > self.getOrDefault("threshold")
        # Spark takes NaN for the largest number, but it is no class.
        label = f.when(f.isnan(most), most).otherwise(label.cast("double"))
        added = {self.getOrDefault("predictionCol"): label}
        if self.given("probabilityCol"):
            added[self.given("probabilityCol")] = array_to_vector(chances)
        if self.given("rawPredictionCol"):
            added[self.given("rawPredictionCol")] = array_to_vector(raw)
        return rows.withColumns(added).drop(HIDDEN)


#: Temporary column of predictions, before they become the requested columns.
HIDDEN = "__gridflow_predicted"
_UNEVEN = "columns that become one input have arrays of different lengths in a row: "


def _evaluable(column: Column, kind: Any) -> Column:
    """Return single numbers as double, the type that Spark's evaluators take."""
    from pyspark.sql.types import FloatType

    return column.cast("double") if isinstance(kind, FloatType) else column


def _input(
    dataset: DataFrame, place: columns.Place, name: str = "", shape: shapes.Shape = ()
) -> Column:
    """Return one column, or several as an array.

    `name`: Of the model's input.
    `shape` (tuple of int or None): Of a row of it.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as f

    from gridflow._feed.ingest.dataframes import is_vector

    def single(name: str) -> Column:
        column = f.col(quoted(name))
        if not is_vector(dataset.schema[name].dataType):
            return column
        # vector_to_array rejects nulls; as a null array they are handled by predict_udf's rule.
        return f.when(column.isNotNull(), vector_to_array(column, "float32"))

    if isinstance(place, str):
        return single(place)
    found = lists_of(dataset)
    if shapes.is_apart(shape, place, found) and shapes.axis_of("input", name, shape, place):
        return _last_axis([_flat(single(each), dataset.schema[each].dataType) for each in place])
    parts = [
        _flat(single(each), dataset.schema[each].dataType)
        if each in found
        else f.array(single(each)).cast("array<float>")
        for each in place
    ]
    return f.concat(*parts)


def lists_of(dataset: DataFrame) -> frozenset[str]:
    """Return the columns that hold arrays or vectors."""
    from pyspark.sql.types import ArrayType

    from gridflow._feed.ingest.dataframes import is_vector

    return frozenset(
        field.name
        for field in dataset.schema
        if isinstance(field.dataType, ArrayType) or is_vector(field.dataType)
    )


def class_of(dataset: DataFrame, name: str) -> Column:
    """Return the class of a label: its number, or the place of the largest in an array or vector.

    Raises `SchemaError`: The column holds something else.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BooleanType, NumericType

    from gridflow._feed.ingest.dataframes import is_vector

    kind, column = dataset.schema[name].dataType, f.col(quoted(name))
    if isinstance(kind, NumericType | BooleanType):
        return column.cast("double")
    if is_vector(kind):
        column = vector_to_array(column)
    elif not (isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType)):
        raise SchemaError(
            f"classWeight: column {name!r} is of type {kind.simpleString()}; labels of classes are "
            "numbers, or arrays with one place for each class."
        )
    return f.array_position(column, f.array_max(column)) - 1


def bytes_of(dataset: DataFrame) -> dict[str, str]:
    """Return the types of the columns that hold bytes or text."""
    from pyspark.sql.types import BinaryType, StringType

    return {
        field.name: field.dataType.simpleString()
        for field in dataset.schema
        if isinstance(field.dataType, BinaryType | StringType)
    }


def single_precision(dataset: DataFrame, name: str, param: str) -> Column:
    """Return a column with doubles as floats, like Keras's conversion of arrays.

    Otherwise custom functions such as losses would get different types for labels and predictions.

    Raises `SchemaError`: The column is a struct, whose fields would arrive as columns of other
        names.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, StructType

    kind = dataset.schema[name].dataType
    if isinstance(kind, StructType):
        raise SchemaError(
            f"{param}: column {name!r} is a struct. Make the fields that you need columns: "
            f"df.select('*', '{name}.*')."
        )
    depth, leaf = 0, kind
    while isinstance(leaf, ArrayType):
        depth, leaf = depth + 1, leaf.elementType
    column = f.col(quoted(name))
    if not isinstance(leaf, DoubleType):
        return column
    single: DataType = FloatType()
    for _ in range(depth):
        single = ArrayType(single)
    return column.cast(single).alias(name)


def _flat(column: Column, kind: Any) -> Column:
    """Return an array of any depth as one of numbers."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType

    while isinstance(kind, ArrayType) and isinstance(kind.elementType, ArrayType):
        column, kind = f.flatten(column), kind.elementType
    return column.cast("array<float>")


def _last_axis(parts: list[Column]) -> Column:
    """Return arrays as the last axis of one: the first element of each, then the second of each."""
    from pyspark.sql import functions as f

    sizes = [f.size(part) for part in parts]
    is_null = reduce(operator.or_, (part.isNull() for part in parts))
    is_even = reduce(operator.and_, (size == sizes[0] for size in sizes[1:]))
    told = f.concat_ws(", ", *(size.cast("string") for size in sizes))
    places = f.sequence(f.lit(1), sizes[0])
    zipped = f.flatten(
        f.transform(places, lambda at: f.array(*(f.element_at(part, at) for part in parts)))
    )
    return (
        f.when(is_null, f.lit(None))
        .when(~is_even, f.raise_error(f.concat(f.lit(_UNEVEN), told)))
        .otherwise(f.when(sizes[0] > 0, zipped).otherwise(f.array().cast("array<float>")))
    )


def _assembled_size(dataset: DataFrame, place: columns.Place) -> int | None:
    """Return the length of vectors, if it is in the column's metadata (VectorAssembler)."""
    if not isinstance(place, str):
        return None
    noted = dataset.schema[place].metadata.get("ml_attr", {}).get("num_attrs")
    return noted if isinstance(noted, int) else None
