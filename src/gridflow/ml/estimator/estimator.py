"""`KerasEstimator`: Keras models trained inside Spark ML's pipelines."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable

from gridflow._distributor import TensorflowDistributor
from gridflow._feed.ingest.base import quoted
from gridflow._feed.selection import named
from gridflow._spec import strategies
from gridflow._spec.arguments import refuse_moved
from gridflow._spec.cluster import EVALUATOR
from gridflow.errors import InvalidArgument, SchemaError, did_you_mean
from gridflow.ml.estimator import (
    columns,
    keras_objects,
    persistence,
    shapes,
    slots,
    training,
)
from gridflow.ml.estimator.model import (
    KerasModel,
    bytes_of,
    class_of,
    lists_of,
    single_precision,
)
from gridflow.ml.estimator.params import EstimatorParams, with_accessors
from gridflow.ml.estimator.summary import KerasTrainingSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

#: Arguments of `TensorflowDistributor` that are Params, and their names there.
_OWN_PARAMS: Final = {
    "num_workers": "numWorkers",
    "gpus": "gpus",
    "backend": "backend",
    "checkpoint_dir": "checkpointDir",
    "seed": "seed",
}
#: The column with the weights of rows by their classes.
_CLASS_WEIGHT: Final = "_gridflow_class_weight"
#: Other names in the constructor.
_NO_PARAMS: Final = frozenset({"self", "__class__"})


@with_accessors
class KerasEstimator(
    EstimatorParams, Estimator["KerasModel"], MLReadable["KerasEstimator"], MLWritable
):
    """Train a Keras model on a DataFrame's rows, as a stage of Spark ML.

    Use it in a ``Pipeline``, a ``CrossValidator`` or a ``TrainValidationSplit``. Every
    parameter is a Param: ``est.epochs`` for ``ParamGridBuilder``, ``est.setEpochs(3)``,
    ``est.getEpochs()``. Fits of several threads (``parallelism=2``) take turns: as many run at
    once as Spark has task slots for. See ``docs/spark-ml.md``.

    Parameters
    ----------
    model : keras.Model or callable
        A Keras 3 or tf_keras model, compiled or not, with the initial weights; or a function
        without arguments that creates one in each worker.
    featuresCol : str, list or dict, default "features"
        A column of vectors (dense or sparse), of arrays or of numbers. A list of columns:
        combined for a model with one input, otherwise one for each input, by name if the names
        match, or in order. ``{"input": "column", "other": ["a", "b"]}``: by input name; the
        columns of a list are combined.
    labelCol : str, list or dict, default "label"
        In the same way, for the outputs.
    weightCol : str or dict, optional
        Weights of the rows (Keras's ``sample_weight``). ``{"output": "column"}``: by output, for
        all of them.
    classWeight : dict of int to float, optional
        Weights of the classes in training, for a model with one output: ``{0: 1.0, 1: 3.0}``.
        Labels are numbers, or arrays with one place for each class. Others weigh 1. It is
        multiplied by `weightCol`.
    validationIndicatorCol : str, optional
        A boolean column. Rows where it is true are validated with after each epoch, not trained
        on; null counts as false.
    predictionCol : str, list or dict, default "prediction"
        The column of ``transform``'s predictions: a double for one number per row, an array
        of floats for several, a struct with a field per output for several outputs. A list
        or dict of names gives each output its own column.
    probabilityCol : str, optional
        Makes the model a classifier: a vector of the classes' probabilities (for one output
        number p: ``[1 - p, p]``), and the class as a double in ``predictionCol``, as Spark's
        evaluators expect them.
    rawPredictionCol : str, optional
        The same with the unchanged outputs (for one output number x: ``[-x, x]``), for models
        that end in logits and for ``BinaryClassificationEvaluator``.
    threshold : float, default 0.5
        For a classifier with one output number. With logits, set it to 0.
    numWorkers : int, default 1
        Tasks that train one model together; each takes a task slot of Spark.
    epochs : int, default 1
    batchSize : int, default 32
        Rows per worker and step: a step takes up to ``batchSize * numWorkers`` rows.
    shuffle : bool, default True
        Shuffle the rows in each epoch.
    seed : int, optional
        For initial weights, shuffling and dropout.
    optimizer : str, dict or keras.optimizers.Optimizer, optional
        Default: the one that the model is compiled with, or Keras's default.
    learningRate : float, optional
        Sets the learning rate of any optimizer.
    loss : str, dict, keras.losses.Loss or callable, optional
        Default: the one that the model is compiled with. A list or dict for several outputs.
    metrics : list or dict, optional
        Default: those that the model is compiled with.
    map : callable, optional
        A function of batches as ``map=`` of ``ctx.dataset``, before rows get the shape of the
        input: ``gridflow.data.image_decoder(64, 64)`` for images of ``spark.read.format(
        "binaryFile")``, ``gridflow.data.array_decoder((64, 64, 3))`` for arrays as bytes. If it
        can be called with ``x`` alone, ``transform`` decodes by it, too; a function of ``x, y``
        (that augments, for example) is for training and validation only.
    customObjects : dict of str to class or function, optional
        Custom layers, losses … that aren't registered with Keras.
    callbacks : list or callable, optional
        Keras callbacks for all workers; or a function that returns them there, without arguments
        or with one named ``ctx`` (`gridflow.TrainingContext`).
    earlyStopping : tuple, optional
        ``("val_loss", 3)``: end the fit after 3 epochs without a better value; the model has the
        weights of the best epoch. ``("val_score", 3, "max")`` for metrics of your own.
    checkpointDir : str, optional
        Folder on the driver. A failed fit with the same Params and rows continues from
        its last checkpoint there. Each such fit has its own subfolder.
    gpus : float, optional
        GPUs of each worker, as for `gridflow.TensorflowDistributor`.
    backend : str, default 'tensorflow'
        What Keras 3 trains with, as for `gridflow.TensorflowDistributor`.
    distributor : dict, optional
        Other options of `gridflow.TensorflowDistributor`, such as ``{"max_restarts": 3, "logs":
        "none"}``.
    safeMode : bool, default True
        Reject models that contain Python code, such as Lambda layers.
    predictBatchSize : int, default 1024
        The maximum number of rows per call of the model in ``transform``.

    Raises
    ------
    TypeError
        A value has the wrong type, as with all Params of Spark.
    InvalidArgument
        A value isn't allowed.

    Examples
    --------
    >>> from gridflow.ml import KerasEstimator
    >>> def make_model():
    ...     import keras
    ...
    ...     model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    ...     model.compile("adam", "mse")
    ...     return model
    >>> est = KerasEstimator(model=make_model, labelCol="y", numWorkers=2, epochs=5)
    >>> est.getEpochs()
    5
    >>> fitted = est.fit(df)  # doctest: +SKIP
    >>> fitted.transform(df).select("y", "prediction").show()  # doctest: +SKIP
    """

    #: Whether it was loaded from a folder.
    isLoaded = False  # noqa: N815 (as Spark writes attributes)

    def __init__(
        self,
        *,
        model: Any = None,
        featuresCol: Any = None,  # noqa: N803 (Spark's way to write Params, here and below)
        labelCol: Any = None,  # noqa: N803
        weightCol: str | Mapping[str, str] | None = None,  # noqa: N803
        classWeight: Mapping[int, float] | None = None,  # noqa: N803
        validationIndicatorCol: str | None = None,  # noqa: N803
        predictionCol: Any = None,  # noqa: N803
        probabilityCol: str | None = None,  # noqa: N803
        rawPredictionCol: str | None = None,  # noqa: N803
        threshold: float | None = None,
        numWorkers: int | None = None,  # noqa: N803
        epochs: int | None = None,
        batchSize: int | None = None,  # noqa: N803
        shuffle: bool | None = None,
        seed: int | None = None,
        optimizer: Any = None,
        learningRate: float | None = None,  # noqa: N803
        loss: Any = None,
        metrics: Any = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 (as ctx.dataset has it)
        customObjects: Mapping[str, Any] | None = None,  # noqa: N803
        callbacks: Sequence[Any] | Callable[..., Sequence[Any]] | None = None,
        earlyStopping: tuple[str, int] | tuple[str, int, str] | None = None,  # noqa: N803
        checkpointDir: str | Path | None = None,  # noqa: N803
        gpus: float | None = None,
        backend: str | None = None,
        distributor: Mapping[str, Any] | None = None,
        safeMode: bool | None = None,  # noqa: N803
        predictBatchSize: int | None = None,  # noqa: N803
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in _NO_PARAMS}
        super().__init__()
        self.setParams(**given)

    def setParams(self, **params: Any) -> KerasEstimator:  # noqa: N802 (Spark's name)
        """Set several Params by name; None leaves a Param unchanged.

        Raises
        ------
        InvalidArgument
            There is no such Param.
        """
        known = [param.name for param in self.params]
        for name in params:
            if name not in known:
                raise InvalidArgument(
                    f"there is no Param {name!r}; there are {', '.join(known)}."
                    f"{did_you_mean(name, known)}"
                )
        return self._set(**{name: value for name, value in params.items() if value is not None})

    def getModel(self) -> Any:  # noqa: N802 (Spark's name)
        """Return `model`; a loaded estimator reads it with `customObjects` and `safeMode`."""
        model = self.getOrDefault("model")
        if not isinstance(model, keras_objects.ModelFile):
            return model
        custom = dict(self.given("customObjects") or {})
        return model.load({"custom_objects": custom, "safe_mode": self.getOrDefault("safeMode")})

    def copy(self, extra: Mapping[Any, Any] | None = None) -> KerasEstimator:
        """Return a copy with other values of some Params.

        Raises
        ------
        InvalidArgument
            They turn off the safe mode of a loaded estimator. The grid of a ``CrossValidator`` is
            loaded with it, so only `setSafeMode` counts for it.
        """
        lowers = self.isLoaded and not (extra or {}).get(self.safeMode, True)
        if lowers and self.getOrDefault("safeMode"):
            raise InvalidArgument(
                f"{self.uid} was loaded, so a param map can't set safeMode=False: it may have been "
                "loaded, too. If you trust who saved them, call setSafeMode(False) on the "
                "estimator."
            )
        return super().copy(extra)  # type: ignore[arg-type]

    def write(self) -> persistence.ParamsWriter:
        """Return a writer: ``est.write().overwrite().save(path)``."""
        return persistence.EstimatorWriter(self)

    @classmethod
    def read(cls) -> persistence.EstimatorReader[KerasEstimator]:
        """Return a reader: ``KerasEstimator.read().load(path)``."""
        return persistence.EstimatorReader(cls)

    # ---------------------------------------------------------------------------------------------

    def _fit(self, dataset: DataFrame) -> KerasModel:
        if self.given("model") is None:
            raise InvalidArgument(
                "KerasEstimator needs model=: a Keras model, or a function without arguments that "
                "makes one."
            )
        data = self._data(dataset)
        options = self._options(dataset)
        distributor = TensorflowDistributor(**options)
        self._check_strategy(distributor)
        recipe = self._recipe(data, distributor.strategy)
        with slots.turn(dataset.sparkSession, distributor):
            result = distributor.run(training.train, recipe, data=data)
        fitted = KerasModel(result.model, KerasTrainingSummary.of(result))
        return self._copyValues(fitted._resetUid(self.uid))  # noqa: SLF001 (as Spark's own do)

    def _data(self, dataset: DataFrame) -> dict[str, DataFrame]:
        """Return the rows for training and validation, with the needed columns."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import BooleanType

        from gridflow._feed.ingest import dataframes

        if dataset.isStreaming:
            raise InvalidArgument(
                "a streaming DataFrame never ends: fit on each batch of it "
                "(writeStream.foreachBatch). transform takes it as it is."
            )
        dataset, _ = dataframes.readable(dataset, "train")
        places = {
            "featuresCol": named(self.getOrDefault("featuresCol")),
            "labelCol": named(self.getOrDefault("labelCol")),
            "weightCol": named(self.given("weightCol")),
        }
        for param, names in places.items():
            columns.check(dataset.columns, names, param)
        needed = {name: param for param, names in places.items() for name in names}
        chosen = [single_precision(dataset, name, param) for name, param in needed.items()]
        left_out = dataframes.check({"train": dataset.select(chosen)}).get("train", {})
        if left_out:
            raise SchemaError(" ".join(left_out.values()))
        indicator = self.given("validationIndicatorCol")
        if indicator is None:
            return {"train": self._class_weighted(dataset.select(chosen))}
        columns.check(dataset.columns, [indicator], "validationIndicatorCol")
        kind = dataset.schema[indicator].dataType
        if not isinstance(kind, BooleanType):
            raise SchemaError(
                f"validationIndicatorCol: column {indicator!r} is of type {kind.simpleString()}; "
                "it must be boolean, true for the rows to validate with."
            )
        validates = f.coalesce(f.col(quoted(indicator)), f.lit(False))
        return {
            "train": self._class_weighted(dataset.where(~validates).select(chosen)),
            "validation": dataset.where(validates).select(chosen),
        }

    def _class_weighted(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the weights of their classes."""
        from pyspark.sql import functions as f

        weights = self.given("classWeight")
        if weights is None:
            return rows
        label, weight = self.getOrDefault("labelCol"), self.given("weightCol")
        names = named(label)
        if len(names) != 1 or len(named(weight)) > 1:
            raise InvalidArgument(
                "classWeight is for models with one output, whose label is one column; got "
                f"labelCol={label!r}, weightCol={weight!r}. Weights by output: weightCol={{…}}."
            )
        factor = f.lit(1.0)
        of_row = class_of(rows, names[0])
        for number, each in weights.items():
            factor = f.when(of_row == number, f.lit(each)).otherwise(factor)
        for column in named(weight):
            factor = factor * f.col(quoted(column))
        return rows.withColumn(_CLASS_WEIGHT, factor.cast("float"))

    def _options(self, dataset: DataFrame) -> dict[str, Any]:
        """Return the arguments of the distributor."""
        options = dict(self.getOrDefault("distributor"))
        for name, param in _OWN_PARAMS.items():
            if name in options:
                raise InvalidArgument(
                    f"distributor={{{name!r}: …}}: that is a separate Param here, {param}=."
                )
        if "roles" in options and (self.isSet("numWorkers") or self.isSet("gpus")):
            raise InvalidArgument(
                "distributor={'roles': …} says how many workers there are and what GPUs they have; "
                "leave numWorkers and gpus out."
            )
        known = {name: self.given(param) for name, param in _OWN_PARAMS.items()}
        if "roles" in options:
            del known["num_workers"], known["gpus"]
        if known["checkpoint_dir"] is not None:
            # Not with Path, which would merge the two slashes after a scheme.
            folder = str(known["checkpoint_dir"]).rstrip("/")
            known["checkpoint_dir"] = f"{folder}/{self._fit_name(dataset)}"
        refuse_moved(options)
        taken = inspect.signature(TensorflowDistributor).parameters
        for name in options:
            if name not in taken:
                raise InvalidArgument(
                    f"distributor={{{name!r}: …}}: TensorflowDistributor takes no such argument."
                    f"{did_you_mean(name, taken)}"
                )
        return {**options, **{n: value for n, value in known.items() if value is not None}}

    def _check_strategy(self, distributor: TensorflowDistributor) -> None:
        facts = strategies.of(distributor.strategy)
        together = facts.exchanges_gradients or facts.hands_out_steps
        if facts.takes_flags or (distributor.num_workers > 1 and not together):
            raise InvalidArgument(
                f"strategy={distributor.strategy!r} with {distributor.num_workers} worker(s) "
                "trains no single model for an estimator to return; leave it out, or use "
                "'multi_worker_mirrored', 'parameter_server', or 'mirrored' with one worker."
            )
        if any(task.role == EVALUATOR for task in distributor.tasks):
            raise InvalidArgument(
                "an estimator has no use for an evaluator: validationIndicatorCol= validates."
            )

    def _recipe(self, data: Mapping[str, DataFrame], strategy: str) -> training.Recipe:
        custom = dict(self.given("customObjects") or {})
        compiling: dict[str, Any] = {}
        for name in ("optimizer", "loss", "metrics"):
            if self.given(name) is not None:
                compiling[name], classes = keras_objects.own_classes(self.given(name))
                custom = {**classes, **custom}
        source = self.given("model")
        if keras_objects.is_model(source):
            source = keras_objects.ModelFile.of(source)
        if isinstance(source, keras_objects.ModelFile):
            if not source.is_compiled and "loss" not in compiling:
                raise InvalidArgument(keras_objects.NOT_COMPILED)
            for kind, param in (("input", "featuresCol"), ("output", "labelCol")):
                names = list(source.header[f"{kind}s"])
                if names:
                    columns.arranged(self.getOrDefault(param), names, kind)
                if names and kind == "input" and self.given("map") is None:
                    self._refuse_bytes(data["train"], source.header)
                if names and kind == "output" and isinstance(self.given("weightCol"), Mapping):
                    columns.arranged(self.given("weightCol"), names, kind)
        return training.Recipe(
            source=source,
            features=self.getOrDefault("featuresCol"),
            labels=self.getOrDefault("labelCol"),
            lists=lists_of(data["train"]),
            bytes=bytes_of(data["train"]),
            map=self.given("map"),
            weight=_CLASS_WEIGHT if self.given("classWeight") else self.given("weightCol"),
            validation_weight=self.given("weightCol"),
            early_stopping=self._early_stopping(),
            epochs=self.getOrDefault("epochs"),
            batch_size=self.getOrDefault("batchSize"),
            shuffle=self.getOrDefault("shuffle"),
            validates="validation" in data,
            hands_out_steps=strategies.of(strategy).hands_out_steps,
            compiling=compiling,
            learning_rate=self.given("learningRate"),
            custom_objects=custom,
            callbacks=self.given("callbacks") or (),
            safe_mode=self.getOrDefault("safeMode"),
        )

    def _refuse_bytes(self, rows: DataFrame, header: Mapping[str, Any]) -> None:
        inputs = dict(zip(header["inputs"], header["dtypes"]["inputs"], strict=True))
        places = columns.arranged(self.getOrDefault("featuresCol"), list(inputs), "input")
        for name, dtype in inputs.items():
            shape = tuple(header["inputs"][name][1:])
            shapes.refuse_bytes(name, dtype, shape, places[name], bytes_of(rows))

    def _early_stopping(self) -> tuple[Any, ...] | None:
        given = self.given("earlyStopping")
        if given is None:
            return None
        metric: str = given[0]
        if metric.startswith("val_") and self.given("validationIndicatorCol") is None:
            raise InvalidArgument(
                f"earlyStopping={given!r} needs rows to validate with: set validationIndicatorCol, "
                f"or use a metric of the training, such as {metric.removeprefix('val_')!r}."
            )
        return tuple(given)

    def _fit_name(self, dataset: DataFrame) -> str:
        """Return a name that is the same for the same Params and rows, as far as Spark knows."""
        params = {
            param.name: persistence.fingerprint(value)
            for param, value in self.extractParamMap().items()
            if param.name not in {"checkpointDir", "distributor"}
        }
        told = json.dumps([params, dataset.semanticHash()], sort_keys=True)
        return f"fit-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
