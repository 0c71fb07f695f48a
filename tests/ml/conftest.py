"""Fixtures of the tests of estimators."""

from __future__ import annotations

import gc

import pytest
from pyspark.ml.feature import VectorAssembler


@pytest.fixture
def collects():
    """Let the sockets that rows came by go while their warnings are ignored."""
    yield
    gc.collect()


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
