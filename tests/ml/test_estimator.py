"""KerasEstimator and KerasModel on Spark: fit, tune, save, load, predict."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import (
    CrossValidator,
    ParamGridBuilder,
    TrainValidationSplit,
)

from gridflow import errors
from gridflow.ml import KerasEstimator, KerasModel

pytestmark = [
    pytest.mark.usefixtures("no_leaks", "by_value"),
    # Keras's own, of numpy; and those of PySpark, which leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

QUIET = {"logs": "none", "progress": False}


@pytest.fixture(autouse=True)
def _collect():
    """Let the sockets that rows came by go while their warnings are ignored."""
    yield
    gc.collect()


def regression():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def estimator(**params):
    return KerasEstimator(distributor=QUIET, **params)


@pytest.fixture(scope="module")
def rows(spark):
    """Give y = a - 2b + 3c, classes by its sign, a town, weights."""
    frame = spark.range(240).selectExpr(
        *("id % 7 / 7 AS a", "float(id % 11 / 11) AS b", "id % 5 / 5 AS c"),
        "CASE WHEN id % 3 = 0 THEN 'north' ELSE 'south' END AS town",
        "double(id % 2 + 1) AS w",
        "id % 4 = 0 AS is_validation",
    )
    frame = frame.selectExpr("*", "a - 2 * b + 3 * c AS y", "int(a - 2 * b + 3 * c > 1) AS kind")
    with_vector = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")
    return with_vector.transform(frame.repartition(2)).cache()


def collected(frame, *names):
    return np.array([tuple(row) for row in frame.select(*names).collect()])


def test_a_fit_equals_plain_keras_on_the_same_rows(rows):
    import keras

    keras.utils.set_random_seed(1)
    model = regression()
    est = estimator(
        model=model,
        labelCol="y",
        weightCol="w",
        epochs=3,
        batchSize=20,
        shuffle=False,
        validationIndicatorCol="is_validation",
    )
    one = rows.repartition(1).sortWithinPartitions("a", "b", "c", "w").cache()
    fitted = est.fit(one)
    x, y, w, held = (
        collected(one, *names) for names in (("a", "b", "c"), ("y",), ("w",), ("is_validation",))
    )
    held = held[:, 0].astype(bool)
    plain = model.fit(
        x[~held],
        y[~held],
        batch_size=20,
        epochs=3,
        shuffle=False,
        verbose=0,
        sample_weight=w[~held, 0],
        validation_data=(x[held], y[held], w[held, 0]),
    )
    for name, values in plain.history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, atol=1e-5)
    predicted = collected(fitted.transform(one), "prediction")
    np.testing.assert_allclose(predicted, model.predict(x, verbose=0), atol=1e-5)
    assert fitted.summary.ledger.check() == []
    assert fitted.summary.totalEpochs == 3
    for shown in (fitted.summary._repr_html_(), fitted.summary.result._repr_html_()):
        assert "<th>val_loss</th>" in shown
    assert (fitted.uid, fitted.getLabelCol()) == (est.uid, "y")


def own_loss(y, predicted):
    return (y - predicted) ** 2


def two_outputs():
    """Return a model that isn't compiled, of two inputs and two outputs."""
    import keras

    keras.utils.set_random_seed(3)
    pair, single = keras.Input((2,), name="pair"), keras.Input((1,), name="c")
    both = keras.layers.Concatenate()([pair, single])
    amount = keras.layers.Dense(1, name="amount")(both)
    kind = keras.layers.Dense(2, activation="softmax", name="kind")(both)
    return keras.Model([pair, single], [amount, kind])


def test_several_inputs_and_outputs_on_two_workers(rows):
    est = estimator(
        model=two_outputs,
        featuresCol={"pair": ["a", "b"], "c": "c"},
        labelCol={"amount": "y", "kind": "kind"},
        weightCol="w",
        optimizer="adam",
        learningRate=0.05,
        loss={"amount": "mse", "kind": "sparse_categorical_crossentropy"},
        metrics={"kind": ["accuracy"]},
        numWorkers=2,
        epochs=2,
    )
    fitted = est.fit(rows)
    assert {"loss", "amount_loss", "kind_loss", "kind_accuracy"} <= set(fitted.summary.history)
    as_struct = fitted.transform(rows)
    assert as_struct.columns == [*rows.columns, "prediction"]
    kinds = {
        field.name: field.dataType.simpleString()
        for field in as_struct.schema["prediction"].dataType
    }
    assert kinds == {"amount": "double", "kind": "array<float>"}
    fitted.setPredictionCol({"kind": "p_kind", "amount": "p_amount"})
    first = fitted.transform(rows).select("p_amount", "p_kind").first()
    assert sum(first.p_kind) == pytest.approx(1)
    with pytest.raises(errors.InvalidArgument, match="one output, and one name"):
        fitted.copy({fitted.probabilityCol: "probability", fitted.predictionCol: "p"}).transform(
            rows
        )
    with pytest.raises(errors.SchemaError, match="has a column 'y' already"):
        fitted.transform(rows, {fitted.predictionCol: ["y", "p"]})


def classifier():
    import keras

    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
    return model


SAVED = """
import sys
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import CrossValidatorModel
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
tuned = CrossValidatorModel.load(sys.argv[1])
rows = tuned.transform(spark.read.parquet(sys.argv[2]))
same = (vector_to_array("probability")[1] - rows.before).between(-1e-6, 1e-6)
print("same", rows.where(same).count(), tuned.bestModel.stages[-1].summary.totalEpochs)
spark.stop()
"""


def test_tuning_in_a_pipeline_is_saved_and_predicts_the_same_in_another_process(rows, tmp_path):
    est = estimator(
        model=classifier,
        labelCol="kind",
        probabilityCol="probability",
        rawPredictionCol="rawPrediction",
        numWorkers=2,
        seed=1,
    )
    index = StringIndexer(inputCol="town", outputCol="town_index")
    assemble = VectorAssembler(inputCols=["a", "b", "c", "town_index"], outputCol="features")
    grid = ParamGridBuilder().addGrid(est.epochs, [1, 2]).build()
    evaluator = BinaryClassificationEvaluator(labelCol="kind")
    cv = CrossValidator(
        estimator=Pipeline(stages=[index, assemble, est]),
        estimatorParamMaps=grid,
        evaluator=evaluator,
        numFolds=2,
        parallelism=2,
        seed=1,
    )
    data = rows.drop("features")
    tuned = cv.fit(data)
    assert len(tuned.avgMetrics) == 2
    predicted = tuned.transform(data)
    assert set(data.columns) < set(predicted.columns)
    assert evaluator.evaluate(predicted) > 0.6
    classes = MulticlassClassificationEvaluator(labelCol="kind", metricName="accuracy")
    assert 0.5 < classes.evaluate(predicted) <= 1
    log_loss = classes.setMetricName("logLoss").evaluate(predicted)
    assert 0 < log_loss < 2
    tuned.write().overwrite().save(str(tmp_path / "tuned"))
    assert len(list((tmp_path / "tuned").glob("bestModel/stages/2_*/model.keras"))) == 1
    chance = vector_to_array("probability")[1]
    told = predicted.select(*data.columns, chance.alias("before"))
    told.write.parquet(str(tmp_path / "rows"))
    done = subprocess.run(
        [sys.executable, "-c", SAVED, str(tmp_path / "tuned"), str(tmp_path / "rows")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "same 240" in done.stdout, done.stderr[-5000:]


def test_a_stream_is_predicted_and_a_fit_of_it_refused(rows, spark, tmp_path):
    model = regression()
    est = estimator(model=model, labelCol="y", learningRate=0.05, numWorkers=2)
    fitted = est.fit(rows.limit(40))
    fitted.write().save((tmp_path / "fitted").as_uri())
    with pytest.raises(errors.InvalidArgument, match=r"write\(\)\.overwrite\(\)"):
        fitted.save((tmp_path / "fitted").as_uri())
    loaded = KerasModel.load((tmp_path / "fitted").as_uri())
    assert loaded.summary.history == fitted.summary.history
    rows.select("a", "b", "c", "features").write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.select("a", "b", "c", "features").schema)
    stream = stream.parquet(str(tmp_path / "rows"))
    with pytest.raises(errors.InvalidArgument, match="foreachBatch"):
        est.fit(stream)
    predicted = loaded.transform(stream).writeStream.format("memory").queryName("predicted")
    query = predicted.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = collected(spark.table("predicted"), "a", "b", "c", "prediction")
    assert len(found) == 240
    expected = fitted.trainedModel.load().predict(found[:, :3], verbose=0)
    np.testing.assert_allclose(found[:, 3:], expected, atol=1e-5)


def test_what_is_wrong_is_said_before_anything_is_launched(rows):
    est = estimator(model=regression, labelCol="y")
    refused = {
        "no column 'z'. It has": {"labelCol": "z"},
        "it has to be boolean": {"validationIndicatorCol": "y"},
        "the model has no input 'x'": {"model": regression(), "featuresCol": {"x": "a"}},
        "isn't compiled": {"model": two_outputs()},
        "no single model for an estimator": {"distributor": {"strategy": "none"}, "numWorkers": 2},
        "a Param of its own here, numWorkers=": {"distributor": {"num_workers": 2}},
        "Did you mean 'max_restarts'": {"distributor": {"max_restart": 2}},
    }
    for text, params in refused.items():
        with pytest.raises(errors.InvalidArgument, match=text.replace("(", r"\(")):
            est.copy().setParams(**params).fit(rows)
    with pytest.raises(errors.InvalidArgument, match="needs model="):
        estimator().fit(rows)


def test_an_estimator_is_saved_and_fits_like_before(rows, tmp_path):
    est = estimator(
        model=regression(),
        labelCol="y",
        loss=own_loss,
        optimizer="sgd",
        epochs=2,
        shuffle=False,
        callbacks=list,
        metrics=["mae"],
    )
    est.save(str(tmp_path / "est"))
    loaded = KerasEstimator.load(str(tmp_path / "est"))
    assert loaded.uid == est.uid
    assert loaded.getEpochs() == 2
    split = TrainValidationSplit(
        estimator=loaded,
        estimatorParamMaps=[{loaded.epochs: 1}, {loaded.epochs: 4}],
        evaluator=RegressionEvaluator(labelCol="y"),
        parallelism=2,
        seed=1,
    ).fit(rows)
    assert split.validationMetrics[1] < split.validationMetrics[0]
    assert split.bestModel.summary.totalEpochs == 4
