"""The model that comes back: loaded, saved, applied to a DataFrame."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest

from gridflow import LocalLauncher, TensorflowDistributor, errors


def collected(frame):
    """Return a DataFrame's rows; PySpark leaves the socket that they came by to the collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        rows = frame.collect()
        gc.collect()
    return rows


def two_outputs():
    """Return a model of two inputs and two outputs whose answers are known."""
    import keras

    x, more = keras.Input((2,), name="x"), keras.Input((1,), name="more")
    total = keras.layers.Dense(1, kernel_initializer="ones", name="total")(x)
    return keras.Model({"x": x, "more": more}, {"total": total, "twice": 2 * x})


def one_output():
    """Return a model that adds three numbers."""
    import keras

    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])


def trained(function):
    """Return the model that a job's function returned."""
    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    return TensorflowDistributor(**quiet).run(function).model


def test_a_model_predicts_columns_stacked_into_its_input(spark):
    rows = spark.range(5).selectExpr("id AS a", "id * 10 AS b", "float(1) AS c")
    predict = trained(one_output).predict_udf(batch_size=2)
    found = collected(rows.withColumn("p", predict("a", "b", "c")).orderBy("a"))
    assert [row.p for row in found] == [11 * i + 1 for i in range(5)]


def test_a_model_of_several_outputs_gives_the_one_that_is_asked_for_or_a_struct(spark):
    model = trained(two_outputs)
    assert list(model.inputs) == ["x", "more"]
    with pytest.raises(errors.InvalidArgument, match="no output 'thrice'"):
        model.predict_udf(output="thrice")
    rows = spark.range(3).selectExpr("array(float(id), 1f) AS x", "float(0) AS more")
    total, twice = (model.predict_udf(output=name) for name in ("total", "twice"))
    found = rows.select(total("x", "more").alias("total"), twice("x", "more").alias("twice"))
    assert sorted((row.total, tuple(row.twice)) for row in collected(found)) == [
        (i + 1.0, (2.0 * i, 2.0)) for i in range(3)
    ]
    both = rows.select(model.predict_udf()("x", "more").alias("p"))
    assert both.dtypes == [("p", "struct<total:float,twice:array<float>>")]
    assert sorted(row.p.total for row in collected(both)) == [1.0, 2.0, 3.0]


@pytest.mark.slow
def test_a_model_can_be_saved_and_loaded_again(tmp_path):
    model = trained(one_output)
    with pytest.raises(errors.InvalidArgument, match=r"end in \.keras"):
        model.save(tmp_path / "model.h5")
    assert model.save(tmp_path / "deep" / "model.keras").is_file()
    assert model.load().predict(np.ones((1, 3)), verbose=0).tolist() == [[3.0]]


@pytest.mark.slow
def test_a_function_that_returns_no_model_says_so():
    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    result = TensorflowDistributor(**quiet).run(lambda: 3)
    with pytest.raises(errors.GridflowError, match="returned int, not a Keras model"):
        _ = result.model
    with pytest.raises(errors.InvalidArgument, match="rank must be between 0 and 0; got 1"):
        result.logs(1)
