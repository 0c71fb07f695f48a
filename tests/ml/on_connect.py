"""Run by a test: models and layers on a server of Spark Connect."""

from __future__ import annotations

import logging
import sys

import pytest
from pyspark.sql import SparkSession

import gridflow
from gridflow.ml import adapt

builder = SparkSession.builder.remote("local[1]")
# What is saved is written by the server. Since Spark 4.3, a server is told so when it starts.
builder = builder.config("spark.sql.artifact.copyFromLocalToFs.allowDestLocal", "true")
spark = builder.getOrCreate()
rows = spark.range(0, 50, 1, 2).selectExpr(
    "id", "float(id) AS a", "concat('t', id % 3) AS t", "array(id % 2, 5) AS c"
)
predict = gridflow.predict_udf(sys.argv[1])  # too large to travel with the function
found = rows.select("id", predict("a", "a").alias("p")).toPandas()
assert (found.p == 2 * found.id).all(), found
said = []
logging.getLogger("gridflow").addHandler(handler := logging.Handler())
handler.emit = lambda record: said.append(record.getMessage())
for _ in range(2):  # the slower way is said once
    whole = gridflow.predict(rows, sys.argv[1], columns={"x": ["a", "a"]}, prediction="p")
    assert whole.columns == ["id", "a", "t", "c", "p"]
    assert whole.where("p = 2 * id").count() == 50
assert [text for text in said if "predict_udf" in text] == said[:1], said
function = gridflow.predict_udf(lambda: lambda x: x + 1, outputs="float")
spark.udf.register("plus_one", function)
rows.createOrReplaceTempView("rows")
assert spark.sql("SELECT plus_one(a) AS p FROM rows WHERE id = 4").collect()[0].p == 5.0

import keras

layers = {
    "a": keras.layers.Normalization(axis=None),
    "t": [keras.layers.StringLookup(), keras.layers.TextVectorization()],
    "c": keras.layers.IntegerLookup(),
}
adapt(layers, rows)
assert float(layers["a"].mean.numpy().ravel()[0]) == 24.5
assert layers["t"][0].get_vocabulary() == ["[UNK]", "t1", "t0", "t2"]
assert layers["t"][1].get_vocabulary() == ["", "[UNK]", "t1", "t0", "t2"]
assert layers["c"].get_vocabulary() == [-1, 5, 1, 0]
import tempfile

from pyspark.ml import Pipeline
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import StringIndexer, VectorAssembler
from pyspark.ml.tuning import CrossValidator, CrossValidatorModel

from gridflow import InvalidArgument
from gridflow.ml import KerasEstimator


def make_model():
    import keras

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


quiet = {"logs": "none", "progress": False}
est = KerasEstimator(model=make_model, labelCol="y", distributor=quiet)
rows = rows.selectExpr("id / 50 AS a", "id / 25 AS y", "t")
# Stages that live on the server, and one that is Python's.
index = StringIndexer(inputCol="t", outputCol="kind")
vector = VectorAssembler(inputCols=["a", "kind"], outputCol="features")
evaluator = RegressionEvaluator(labelCol="y")
with tempfile.TemporaryDirectory() as folder:
    Pipeline(stages=[index, vector, est]).save(f"{folder}/begun")
    begun = Pipeline.load(f"{folder}/begun")
    grid = [{begun.getStages()[2].epochs: 2}]
    tuned = CrossValidator(
        estimator=begun, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1
    ).fit(rows)
    tuned.save(f"{folder}/tuned")
    again = CrossValidatorModel.load(f"{folder}/tuned")
    assert again.avgMetrics == tuned.avgMetrics
    fitted = again.bestModel
    assert fitted.stages[-1].summary.totalEpochs == 2
    predicted = fitted.transform(rows)
    assert evaluator.evaluate(predicted) == evaluator.evaluate(tuned.transform(rows))
    fitted.write().overwrite().save(f"{folder}/fitted")
    for path in (f"file:{folder}/with-a-scheme", f"{folder}/fitted"):
        with pytest.raises(InvalidArgument, match="Spark Connect"):
            fitted.stages[-1].write().overwrite().save(path)
print("all over Connect: ok")
spark.stop()
