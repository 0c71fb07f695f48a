"""A model as a function of columns: which columns it takes, and what it is read with."""

from __future__ import annotations

import pytest

from gridflow import LocalLauncher, TensorflowDistributor, errors
from gridflow.ml.columns import Slot
from gridflow.ml.predict import arranged

#: pyspark leaves the sockets that rows came by to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def own_layer():
    """Return a layer that Keras knows nothing of."""
    import keras

    class Twice(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    return Twice


def train():
    """Return a model of a layer of its own, a Lambda, and inputs of numbers and words."""
    import keras

    shape = (1,)
    age, size = keras.Input(shape, name="age"), keras.Input(shape, name="size")
    city = keras.Input(shape, name="city", dtype="string")
    place = keras.layers.StringLookup(vocabulary=["a", "b"])(city)
    plus = keras.layers.Lambda(lambda x: x + 100)
    total = plus(own_layer()()(age)) - size + 10 * keras.ops.cast(place, "float32")
    return keras.Model([age, size, city], total)


def test_a_model_with_parts_of_its_own_predicts_by_the_names_of_its_inputs(spark):
    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    model = TensorflowDistributor(**quiet).run(train).model
    assert list(model.inputs) == ["age", "size", "city"]
    with pytest.raises(errors.GridflowError, match=r"custom_objects=.*safe_mode=False"):
        model.load()
    own = {"custom_objects": {"Twice": own_layer()}, "safe_mode": False}
    assert model.load(**own).name
    predict = model.predict_udf(**own)
    rows = spark.sql("SELECT * FROM VALUES (1f, 5f, 'a'), (2f, 6f, 'b') AS t(x, y, `z`)")
    found = rows.select(predict(size="y", city=rows.z, age="x").alias("p")).toPandas()
    assert sorted(found.p) == [107.0, 118.0]
    spark.udf.register("of_the_model", predict)
    assert sorted(rows.selectExpr("of_the_model(x, y, z) AS p").toPandas().p) == [107.0, 118.0]
    holes = rows.selectExpr("x", "y", "nullif(z, 'b') AS z")
    with pytest.raises(Exception, match="input 'city' contains nulls.*fillna"):
        holes.select(predict("x", "y", "z")).toPandas()
    with pytest.raises(errors.InvalidArgument, match="got 2"):
        predict("x", "y")


ONE = {"x": Slot((3,))}
TWO = {"age": Slot((1,)), "name": Slot((1,))}


@pytest.mark.parametrize(
    ("inputs", "columns", "by_input", "said"),
    [
        (ONE, ("a", "b"), {}, r"\('x'\), or 3 columns of numbers; got 2"),
        (ONE, (), {}, "got 0"),
        (TWO, ("a",), {}, r"\('age', 'name'\); got 1"),
        (TWO, ("a", "b", "c"), {}, "got 3"),
        (TWO, ("a",), {"name": "b"}, "got 1 in order and 'name' by name"),
        (TWO, (), {"name": "b"}, "inputs 'age' got no column"),
        (TWO, (), {"name": "b", "aged": "a"}, "no input 'aged'.*Did you mean 'age'"),
        ({"image": Slot((8, 8))}, ("a", "b"), {}, r"\('image'\); got 2"),
    ],
)
def test_columns_that_dont_fit_the_model_are_refused_at_the_call(inputs, columns, by_input, said):
    with pytest.raises(errors.InvalidArgument, match=said):
        arranged(columns, by_input, inputs)


@pytest.mark.parametrize(
    ("inputs", "columns", "by_input", "order"),
    [
        (ONE, ("array",), {}, ["array"]),
        (ONE, ("a", "b", "c"), {}, ["a", "b", "c"]),
        ({"x": Slot((None,))}, ("a", "b"), {}, ["a", "b"]),
        (TWO, ("a", "n"), {}, ["a", "n"]),
        (TWO, (), {"name": "n", "age": "a"}, ["a", "n"]),
    ],
)
def test_columns_are_put_in_the_order_of_the_inputs(inputs, columns, by_input, order):
    assert list(arranged(columns, by_input, inputs)) == order
