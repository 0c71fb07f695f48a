"""What preprocessing layers learn is the same on each version of Spark."""

from __future__ import annotations

import pytest

import keras
from gridflow.ml import adapt


@pytest.mark.interface
def test_layers_learn_from_a_dataframe(spark):
    rows = spark.range(0, 90, 1, 3).selectExpr(
        "CAST(id AS float) AS a", "nullif(id % 3, 2) AS b", "concat('Of, ', id % 2) AS c"
    )
    words = keras.layers.TextVectorization()
    layers = {
        "a": [keras.layers.Normalization(axis=None), keras.layers.Discretization(num_bins=3)],
        "b": [keras.layers.IntegerLookup(), keras.layers.CategoryEncoding(num_tokens=1)],
        "c": [keras.layers.StringLookup(), words],
    }
    adapt(layers, rows)
    assert float(layers["a"][0].mean.numpy().ravel()[0]) == 44.5
    assert layers["a"][1].bin_boundaries == [29.0, 59.0]
    assert layers["b"][0].get_vocabulary() == [-1, 1, 0]
    assert layers["b"][1].num_tokens == 2
    assert layers["c"][0].get_vocabulary() == ["[UNK]", "Of, 1", "Of, 0"]
    assert words.get_vocabulary() == ["", "[UNK]", "of", "1", "0"]
