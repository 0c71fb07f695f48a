"""KerasEstimator and KerasModel on Spark: fit, tune, save, load, predict."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from estimators import MARKS, estimator
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

import gridflow.data
from gridflow import errors
from gridflow.ml import KerasEstimator, KerasModel
from gridflow.ml.estimator.model import HIDDEN

pytestmark = MARKS


def regression():
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def collected(frame, *names):
    return np.array([tuple(row) for row in frame.select(*names).collect()])


def parts(frame, *groups):
    """Return the columns of each group: two queries may order the same rows differently."""
    rows = frame.collect()
    return [np.array([[row[name] for name in group] for row in rows]) for group in groups]


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
    x, y, w, held = parts(one, ("a", "b", "c"), ("y",), ("w",), ("is_validation",))
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


def test_weights_by_output_equal_those_of_plain_keras(rows):
    est = estimator(
        model=two_outputs,
        featuresCol={"pair": ["a", "b"], "c": "c"},
        labelCol={"amount": "y", "kind": "kind"},
        weightCol={"kind": "w", "amount": "a"},
        optimizer="sgd",
        loss={"amount": "mse", "kind": "sparse_categorical_crossentropy"},
        epochs=2,
        batchSize=240,
    )
    fitted = est.fit(rows)
    model = two_outputs()
    model.compile("sgd", ["mse", "sparse_categorical_crossentropy"])
    x, y, kind, w = parts(rows, ("a", "b", "c"), ("y",), ("kind",), ("a", "w"))
    plain = model.fit(
        [x[:, :2], x[:, 2:]],
        [y, kind],
        sample_weight=[w[:, 0], w[:, 1]],
        batch_size=240,
        epochs=2,
        verbose=0,
    )
    np.testing.assert_allclose(fitted.summary.history["loss"], plain.history["loss"], atol=1e-5)
    with pytest.raises(errors.InvalidArgument, match="no output 'sort'"):
        est.copy({est.model: model, est.weightCol: {"kind": "w", "sort": "a"}}).fit(rows)


def test_class_weights_and_early_stopping_equal_those_of_plain_keras(rows):
    import keras

    def made():
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(40.0), "binary_crossentropy")
        return model

    est = estimator(
        model=made(),
        labelCol="kind",
        classWeight={0: 1.0, 1: 3.0},
        validationIndicatorCol="is_validation",
        earlyStopping=("val_loss", 1),
        epochs=20,
        batchSize=240,
    )
    fitted = est.fit(rows)
    x, y, held = parts(rows, ("a", "b", "c"), ("kind",), ("is_validation",))
    held = held[:, 0].astype(bool)
    model = made()
    plain = model.fit(
        x[~held],
        y[~held],
        batch_size=240,
        epochs=20,
        verbose=0,
        class_weight={0: 1.0, 1: 3.0},
        validation_data=(x[held], y[held]),
        callbacks=[keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)],
    )
    assert len(plain.history["loss"]) < 20
    for name, values in plain.history.items():
        np.testing.assert_allclose(fitted.summary.history[name], values, rtol=1e-4)
    kept = fitted.trainedModel.load().get_weights()
    for found, expected in zip(kept, model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    with pytest.raises(errors.InvalidArgument, match="needs rows to validate with.*'loss'"):
        est.copy().setValidationIndicatorCol(None).fit(rows)
    with pytest.raises(errors.InvalidArgument, match="models with one output"):
        est.setLabelCol(["kind", "y"]).fit(rows)


def of_pictures():
    import keras

    picture, size = keras.Input((4, 6, 3), name="picture"), keras.Input((1,), name="size")
    flat = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(picture))
    both = keras.layers.Concatenate()([flat, keras.layers.Rescaling(1 / 1000)(size)])
    out = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1))(both)
    model = keras.Model([picture, size], out)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def test_binary_columns_are_decoded_in_fit_transform_and_predict_udf_alike(spark, tmp_path):
    import tensorflow as tf

    pixels = np.random.default_rng(1).integers(0, 256, (12, 4, 6, 3), np.uint8)
    for number, picture in enumerate(pixels):
        (tmp_path / f"{number:02}.png").write_bytes(tf.io.encode_png(picture).numpy())
    rows = spark.read.format("binaryFile").load(str(tmp_path)).sort("path")
    rows = rows.selectExpr("content", "length", "float(length) AS label").coalesce(1).cache()
    est = estimator(
        model=of_pictures(),
        featuresCol={"picture": "content", "size": "length"},
        map=gridflow.data.image_decoder(4, 6, key="picture"),
        batchSize=12,
        epochs=2,
    )
    sizes = collected(rows, "length").astype("float32")
    plain = of_pictures()
    given = {"picture": pixels.astype("float32"), "size": sizes}
    history = plain.fit(given, sizes, batch_size=12, epochs=2, verbose=0).history
    fitted = est.fit(rows)
    np.testing.assert_allclose(fitted.summary.history["loss"], history["loss"], rtol=1e-4)
    expected = plain.predict(given, verbose=0)
    found = collected(fitted.transform(rows), "prediction")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    saved = spark.createDataFrame(
        [(p.tobytes(), int(n[0])) for p, n in zip(pixels, sizes, strict=True)],
        "picture binary, size int",
    )
    decode = gridflow.data.array_decoder((4, 6, 3), "uint8", key="picture")
    predict = fitted.trainedModel.predict_udf(map=decode, batch_size=5)
    found = collected(saved.coalesce(1).withColumn("p", predict("picture", "size")), "p")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for model in (of_pictures(), of_pictures):
        with pytest.raises(
            errors.GridflowError, match=r"column 'content' is of type binary, .*decoder\(4, 6\)"
        ):
            est.copy({est.model: model}).setMap(None).fit(rows)
    with pytest.raises(errors.InvalidArgument, match="a function of x alone"):
        fitted.trainedModel.predict_udf(map=lambda x, y: (x, y))


def classifier():
    import keras

    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(1.0), "binary_crossentropy")
    return model


SAVED = """
import sys
import threading
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


def test_inputs_without_names_are_taken_in_order(rows):
    import keras

    def unnamed():
        a, b = keras.Input((1,)), keras.Input((1,))
        model = keras.Model([a, b], keras.layers.Dense(1, use_bias=False)(a - 2 * b))
        model.compile(keras.optimizers.SGD(0.5), "mse")
        return model

    ordered = rows.selectExpr("a", "b", "3 * (a - 2 * b) AS y")
    for model in (unnamed, unnamed()):
        est = estimator(model=model, featuresCol=["a", "b"], labelCol="y", epochs=5)
        predicted = est.fit(ordered).transform(ordered)
        found = collected(predicted, "y", "prediction")
        np.testing.assert_allclose(found[:, 0], found[:, 1], atol=0.01)


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
        "it must be boolean": {"validationIndicatorCol": "y"},
        "the model has no input 'x'": {"model": regression(), "featuresCol": {"x": "a"}},
        "isn't compiled": {"model": two_outputs()},
        "no single model for an estimator": {"distributor": {"strategy": "none"}, "numWorkers": 2},
        "a separate Param here, numWorkers=": {"distributor": {"num_workers": 2}},
        "Did you mean 'max_restarts'": {"distributor": {"max_restart": 2}},
        "step_timeout moved: deadlines=Deadlines": {"distributor": {"step_timeout": 2}},
    }
    for text, params in refused.items():
        with pytest.raises(errors.InvalidArgument, match=text.replace("(", r"\(")):
            est.copy().setParams(**params).fit(rows)
    with pytest.raises(errors.SchemaError, match=r"featuresCol: column 'ab' is a struct.*'ab\.\*'"):
        est.copy().setFeaturesCol("ab").fit(rows.selectExpr("struct(a, b) AS ab", "y"))
    with pytest.raises(errors.InvalidArgument, match="needs model="):
        estimator().fit(rows)


def test_what_is_no_number_is_of_no_class(spark):
    model = KerasModel(SimpleNamespace(outputs={"p": [None, 1]})).setRawPredictionCol("raw")
    scores = spark.sql("SELECT * FROM VALUES (0.7f), (0.2f), (float('nan')) AS t(p)")
    for score in ("p", "array(0.5f, p)"):
        scored = scores.selectExpr(f"{score} AS {HIDDEN}")
        found = collected(model._classified(scored), "prediction")
        np.testing.assert_equal(found, [[1.0], [0.0], [np.nan]])


def test_predictions_replace_no_column_in_whatever_case(spark):
    model = KerasModel(SimpleNamespace(outputs={"p": [None, 1]}))
    for name in ("prediction", "Prediction"):
        with pytest.raises(errors.SchemaError, match=f"has a column '{name}' already"):
            model.transform(spark.range(1).withColumnRenamed("id", name))
    with pytest.raises(errors.InvalidArgument, match="have to differ"):
        model.setProbabilityCol("PREDICTION").transform(spark.range(1))


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
