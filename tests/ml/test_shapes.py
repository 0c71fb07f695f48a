"""Columns of other shapes than a model's inputs and outputs: images, sequences, labels of both."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.sql import functions as f

from gridflow import errors
from gridflow.ml import KerasEstimator
from gridflow.ml.estimator import shapes

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _collect():
    """Let the sockets that rows came by go while their warnings are ignored."""
    yield
    gc.collect()


def fit_of(shape, place, lists=(), what="input"):
    return shapes.Fit.of(what, "x", SimpleNamespace(shape=(None, *shape)), place, lists)


def test_rows_are_reshaped_where_their_elements_decide_it():
    flat = np.arange(32.0, dtype="float32").reshape(2, 16)
    for shape in ((4, 4), (4, 4, 1), (2, 8)):
        found = fit_of(shape, "a").apply(flat)
        np.testing.assert_array_equal(found, flat.reshape(2, *shape))
    assert fit_of((16,), "a").apply(flat) is flat  # what Keras takes as it is
    assert fit_of((None, 4), "a").apply(flat) is flat
    empty = fit_of((4, 4), "a").apply(flat[:0])
    assert empty.shape == (0, 4, 4)
    with pytest.raises(
        errors.SchemaError,
        match=r"input 'x' takes rows of the shape \(5, 5\), and column 'a' holds rows of the shape "
        r"\(16,\): 16 elements, where 25 are needed",
    ):
        fit_of((5, 5), "a").apply(flat)


def test_columns_of_arrays_become_the_last_axis_or_the_first():
    a, b = np.arange(10).reshape(2, 5), 100 + np.arange(10).reshape(2, 5)
    found = fit_of((5, 2), ["a", "b"], {"a", "b"}).apply([a, b])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.stack([a, b], axis=-1))
    found = fit_of((2, 5), ["a", "b"], {"a", "b"}).apply([a, b])
    np.testing.assert_array_equal(found, np.stack([a, b], axis=1))
    with pytest.raises(
        errors.SchemaError, match="neither its first nor its last axis has the size 2"
    ):
        fit_of((5, 4), ["a", "b"], {"a", "b"})
    with pytest.raises(errors.SchemaError, match="needed of each column"):
        fit_of((4, 2), ["a", "b"], {"a", "b"}).apply([a, b])
    numbers = fit_of((5, 2), list("abcdefghij"))  # row-major
    assert not numbers.apart


def test_labels_are_images_or_classes_of_their_places():
    flat = np.arange(8).reshape(2, 4)
    assert fit_of((2, 2, 1), "y", what="output").apply(flat).shape == (2, 2, 2, 1)
    assert fit_of((2, 2, 10), "y", what="output").apply(flat).shape == (2, 2, 2)
    assert fit_of((7, 3), "y", what="output").apply(flat) is flat  # a loss of one's own may fit it


def model():
    """Return a model of an image and a sequence, with an image as an output."""
    import keras

    keras.utils.set_random_seed(5)
    image, steps = keras.Input((4, 4, 1), name="image"), keras.Input((5, 2), name="steps")
    mask = keras.layers.Conv2D(1, 3, padding="same", name="mask")(image)
    amount = keras.layers.Dense(1, name="amount")(keras.layers.LSTM(3)(steps))
    made = keras.Model([image, steps], [mask, amount])
    made.compile(keras.optimizers.SGD(0.1), {"mask": "mse", "amount": "mse"})
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks", "by_value")
def test_a_fit_on_flat_images_and_columns_of_steps_equals_plain_keras(spark):
    def drawn(size, seed):
        return f.transform(
            f.sequence(f.lit(1), f.lit(size)), lambda at: (at * seed + f.col("id")) % 7 / 7
        )

    rows = spark.range(0, 40, numPartitions=1).select(
        "id",
        drawn(16, 3).alias("pixels"),
        drawn(5, 2).alias("a"),
        drawn(5, 5).cast("array<float>").alias("b"),
        drawn(16, 4).alias("wanted"),
        (f.col("id") % 3 / 3).alias("y"),
    )
    est = KerasEstimator(
        model=model,
        featuresCol={"image": "pixels", "steps": ["a", "b"]},
        labelCol={"mask": "wanted", "amount": "y"},
        batchSize=10,
        epochs=2,
        shuffle=False,
        distributor={"logs": "none", "progress": False},
    )
    fitted = est.fit(rows)

    local = rows.collect()
    pixels, a, b, wanted, y = (
        np.array([row[name] for row in local], "float32")
        for name in ("pixels", "a", "b", "wanted", "y")
    )
    x = {"image": pixels.reshape(-1, 4, 4, 1), "steps": np.stack([a, b], axis=-1)}
    labels = {"mask": wanted.reshape(-1, 4, 4, 1), "amount": y}
    plain = model()
    history = plain.fit(x, labels, batch_size=10, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(fitted.summary.history["loss"], history["loss"], atol=1e-5)
    mask, amount = plain.predict(x, verbose=0)
    found = fitted.transform(rows).select("prediction.*").collect()
    np.testing.assert_allclose([row.mask for row in found], mask, atol=1e-5)
    np.testing.assert_allclose([row.amount for row in found], amount[:, 0], atol=1e-5)

    short = rows.withColumn("b", f.slice("b", 1, 4))
    with pytest.raises(Exception, match="arrays of different lengths in a row: 5, 4"):
        fitted.transform(short).collect()
    with pytest.raises(errors.GridflowError, match="16 elements, where 25 are needed"):
        KerasEstimator(
            model=too_large,
            featuresCol="pixels",
            labelCol="y",
            loss="mse",
            distributor={"logs": "none", "progress": False},
        ).fit(rows)


def too_large():
    import keras

    return keras.Sequential([keras.Input((5, 5)), keras.layers.Flatten(), keras.layers.Dense(1)])
