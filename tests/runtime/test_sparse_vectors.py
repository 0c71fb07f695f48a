"""Spark's vectors, dense and sparse mixed, as sparse tensors: a model learns from them the same."""

from __future__ import annotations

import numpy as np
import pytest

from gridflow import SparkLauncher, Sparse, TensorflowDistributor

pytestmark = pytest.mark.slow
SIZE = 40


def learn(ctx):
    """Train on the sparse column, and then on the same vectors as they are without it."""
    import keras

    found = []
    for name, sparse in (("v", True), ("d", False)):
        with ctx.strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((SIZE,), sparse=sparse),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            model.compile(keras.optimizers.SGD(0.01), "mse")
        rows = ctx.dataset("train", batch_size=8, features=name, label="y", shuffle=False)
        kind = type(next(iter(rows))[0]).__name__
        history = model.fit(rows, epochs=2, verbose=0)
        found.append((kind, model.get_weights(), history.history["loss"]))
    return found


def test_a_model_learns_the_same_from_sparse_tensors(spark, no_leaks, by_value):
    from pyspark.ml.linalg import Vectors

    rng = np.random.default_rng(3)
    rows = []
    for number in range(30):
        values = np.zeros(SIZE)
        places = sorted(rng.choice(SIZE, 4, replace=False).tolist())
        values[places] = rng.normal(size=4)
        sparse = Vectors.sparse(SIZE, places, values[places].tolist())
        rows.append((Vectors.dense(values) if number % 3 else sparse, float(number % 5)))
    frame = spark.createDataFrame(rows, ["v", "y"]).selectExpr("v", "v as d", "y")
    distributor = TensorflowDistributor(
        1,
        launcher=SparkLauncher(spark),
        columns={"v": Sparse(SIZE)},
        seed=1,
        logs="none",
        progress=False,
    )
    (sparse, dense) = distributor.run(learn, data=frame).value
    assert "Sparse" in sparse[0]
    assert "Sparse" not in dense[0]
    for one, other in zip(sparse[1], dense[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    assert sparse[2] == pytest.approx(dense[2], rel=1e-5)
