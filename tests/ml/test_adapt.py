"""Layers that learn from a DataFrame know what Keras's own adapt teaches them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridflow import errors, predict_udf
from gridflow.ml import adapt
from gridflow.ml.statistics import Sketch, boundaries

#: pyspark leaves the sockets that rows came by to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 2000


@pytest.fixture(scope="module")
def rows():
    """Give rows of every kind of column."""
    random = np.random.default_rng(7)
    words = ["Kraków", "a", "b b", "B", "Ünï", "[UNK]", "", "c!", "d,e", "zz"]
    sizes = random.integers(0, 9, ROWS)
    return {
        "age": random.normal(40, 12, ROWS).astype("float32"),
        "width": random.integers(0, 90, ROWS),
        "city": random.choice(words, ROWS),
        "zip": random.choice([-1, 0, 5, 7, 1 << 40], ROWS),
        "month": random.integers(0, 12, ROWS),
        "pixels": random.random((ROWS, 2, 3)).astype("float32"),
        "tags": random.choice(words, (ROWS, 3)),
        "codes": random.integers(0, 6, (ROWS, 2)),
        "text": np.array([" ".join(random.choice(words, n)) + "  " * (n % 2) for n in sizes]),
    }


@pytest.fixture(scope="module")
def frame(spark, rows):
    """Give them as a DataFrame, with some rows that hold nothing at all."""
    import pandas as pd

    table = pd.DataFrame({name: list(values) for name, values in rows.items()})
    table["pixels"] = [each.tolist() for each in rows["pixels"]]
    table["codes"] = [each.tolist() for each in rows["codes"]]
    table["tags"] = [each.tolist() for each in rows["tags"]]
    kinds = (
        "age float, width int, city string, zip bigint, month int, pixels array<array<float>>, "
        "tags array<string>, codes array<int>, text string"
    )
    nothing = ", ".join(f"CAST(NULL AS {kind.split(' ', 1)[1]})" for kind in kinds.split(", "))
    given = spark.createDataFrame(table, kinds).repartition(3)
    return given.unionAll(spark.sql(f"SELECT {nothing}")).cache()


def test_lookups_have_keras_own_vocabularies(frame, rows):
    from keras import layers

    makes = {
        "city": [
            lambda: layers.StringLookup(),
            lambda: layers.StringLookup(max_tokens=5, num_oov_indices=2, mask_token=""),
            lambda: layers.StringLookup(
                output_mode="tf_idf", pad_to_max_tokens=True, max_tokens=20
            ),
            lambda: layers.StringLookup(output_mode="multi_hot", oov_token="a"),
        ],
        "zip": [
            lambda: layers.IntegerLookup(),
            lambda: layers.IntegerLookup(max_tokens=4, mask_token=0),
            lambda: layers.IntegerLookup(output_mode="count", num_oov_indices=0),
        ],
        "tags": [lambda: layers.StringLookup(), lambda: layers.StringLookup(output_mode="tf_idf")],
        "codes": [lambda: layers.IntegerLookup(output_mode="tf_idf")],
    }
    ours = {column: [make() for make in each] for column, each in makes.items()}
    adapt(ours, frame)
    for column, each in makes.items():
        for make, our in zip(each, ours[column], strict=True):
            their = make()
            their.adapt(rows[column])
            assert our.get_vocabulary() == their.get_vocabulary()
            if their.output_mode == "tf_idf":
                np.testing.assert_allclose(our.idf_weights, their.idf_weights, rtol=1e-6)
            if their.num_oov_indices:
                np.testing.assert_allclose(our(rows[column][:9]), their(rows[column][:9]), 1e-6)


def test_texts_are_cut_as_keras_cuts_them(frame, rows):
    import tensorflow as tf

    from keras import layers

    makes = [
        lambda: layers.TextVectorization(),
        lambda: layers.TextVectorization(max_tokens=6, output_mode="tf_idf"),
        lambda: layers.TextVectorization(standardize="lower", ngrams=2),
        lambda: layers.TextVectorization(standardize=None, ngrams=(2, 3), output_mode="count"),
        lambda: layers.TextVectorization(standardize="strip_punctuation", split="character"),
        lambda: layers.TextVectorization(split=None, output_mode="multi_hot"),
        lambda: layers.TextVectorization(
            standardize=lambda x: tf.strings.upper(x), split=lambda x: tf.strings.split(x, "B")
        ),
    ]
    ours = [make() for make in makes]
    adapt({"text": ours}, frame)
    for make, our in zip(makes, ours, strict=True):
        their = make()
        their.adapt(rows["text"])
        assert our.get_vocabulary() == their.get_vocabulary()
        np.testing.assert_allclose(our(rows["text"][:20]), their(rows["text"][:20]), rtol=1e-6)


def test_numbers_are_normalised_as_keras_does(frame, rows):
    from keras import layers

    makes = {
        "age": lambda: layers.Normalization(axis=None),
        "pixels": lambda: layers.Normalization(axis=-1),
    }
    ours = {column: make() for column, make in makes.items()}
    whole, places = layers.Normalization(axis=(1, 2)), layers.Normalization(axis=None)
    beside = layers.Normalization()
    month = layers.CategoryEncoding(num_tokens=1)
    adapt({"age": ours["age"], ("age", "width"): beside, "month": month}, frame)
    adapt({"pixels": [ours["pixels"], whole, places]}, frame)
    for column, make in makes.items():
        their = make()
        their.adapt(rows[column])
        assert ours[column].mean.shape == their.mean.shape
        assert ours[column](rows[column][:5]).shape == rows[column][:5].shape
        np.testing.assert_allclose(np.ravel(ours[column].mean), np.ravel(their.mean), rtol=1e-5)
        variances = (np.ravel(layer.variance) for layer in (ours[column], their))
        np.testing.assert_allclose(*variances, rtol=1e-4)
    for layer, axis in ((whole, (1, 2)), (places, None)):
        their = layers.Normalization(axis=axis)
        their.adapt(rows["pixels"])
        np.testing.assert_allclose(layer(rows["pixels"]), their(rows["pixels"]), atol=1e-4)
    table = np.stack([rows["age"], rows["width"]], axis=1)
    their = layers.Normalization()
    their.adapt(table)
    np.testing.assert_allclose(beside(table), their(table), atol=1e-4)
    assert month.num_tokens == 12


def test_boundaries_are_quantiles_within_the_stated_error(frame, rows):
    from keras import layers

    layer, of_arrays = layers.Discretization(num_bins=8), layers.Discretization(num_bins=4)
    adapt({"age": layer}, frame)
    adapt({"pixels": of_arrays}, frame)
    for each, values in ((layer, rows["age"]), (of_arrays, rows["pixels"].ravel())):
        ranks = np.searchsorted(np.sort(values), each.bin_boundaries) / len(values)
        wanted = np.arange(1, each.num_bins) / each.num_bins
        assert np.abs(ranks - wanted).max() <= layer.epsilon / 10 + 1.5 / len(values)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda k: {"city": k.Dense(1)},
            "adapt supports the Keras 3 layers Normalization, StringLookup",
        ),
        (lambda k: {"town": k.StringLookup()}, "no column 'town'"),
        (lambda k: {"zip": k.StringLookup()}, "takes strings, but the column 'zip' holds integers"),
        (lambda k: {"city": k.IntegerLookup()}, "takes integers, but the column 'city' holds str"),
        (lambda k: {"city": k.Normalization()}, "'city' is of string, and the layer takes byte"),
        (lambda k: {"city": k.StringLookup(vocabulary=["a"])}, "was created with its vocabulary"),
        (lambda k: {("age", "width"): k.Discretization(num_bins=2)}, "adapts to one column"),
        (lambda k: k.StringLookup(name="town"), "no column 'town' for 'town'"),
    ],
)
def test_what_cannot_be_learnt_is_said(frame, make, said):
    from keras import layers

    with pytest.raises(errors.GridflowError, match=said):
        adapt(make(layers), frame)
    with pytest.raises(errors.InvalidArgument, match="needs a DataFrame of Spark's .*; got dict"):
        adapt(make(layers), {"city": ["York"]})


def test_no_rows_are_nothing_to_learn_from(frame):
    from keras import layers

    for column, layer in (
        ("age", layers.Normalization()),
        ("city", layers.StringLookup()),
        ("text", layers.TextVectorization()),
        ("age", layers.Discretization(num_bins=2)),
    ):
        with pytest.raises(errors.DataError, match="nothing to adapt|no tokens"):
            adapt({column: layer}, frame.where("age > 1e9"))


def test_a_feature_space_learns_is_saved_and_agrees_with_keras(frame, rows, tmp_path):
    import tensorflow as tf

    import keras

    def make():
        space = keras.utils.FeatureSpace
        return space(
            {
                "age": "float_normalized",
                "width": "float",
                "city": space.string_categorical(max_tokens=6),
                "zip": "integer_categorical",
            },
            crosses=[("city", "zip")],
            output_mode="concat",
        )

    ours, their = make(), make()
    adapt(ours, frame)
    names = ("age", "width", "city", "zip")
    their.adapt(tf.data.Dataset.from_tensor_slices({name: rows[name] for name in names}).batch(99))
    given = {name: rows[name][:50].reshape(-1, 1) for name in names}
    np.testing.assert_allclose(ours(given), their(given), atol=1e-4)
    ours.save(tmp_path / "space.keras")
    again = keras.saving.load_model(tmp_path / "space.keras")
    np.testing.assert_allclose(again(given), ours(given), atol=1e-6)


def test_training_batch_inference_and_serving_agree(frame, rows, tmp_path):
    import tensorflow as tf

    import keras

    age = keras.Input((1,), name="age")
    city = keras.Input((1,), name="city", dtype="string")
    lookup = keras.layers.StringLookup(max_tokens=8, mask_token="", output_mode="one_hot")
    normal = keras.layers.Normalization()
    adapt({"age": normal, "city": lookup}, frame)
    x = keras.layers.Concatenate()([normal(age), lookup(city)])
    model = keras.Model({"age": age, "city": city}, keras.layers.Dense(1, name="p")(x))
    few = frame.where("age IS NOT NULL").limit(200).toPandas()
    given = {"age": tf.constant(few[["age"]]), "city": tf.constant(few[["city"]])}
    trained = model(given).numpy().ravel()
    model.save(tmp_path / "model.keras")
    model.export(tmp_path / "served", verbose=False)
    signature = tf.saved_model.load(tmp_path / "served").signatures["serving_default"]
    served = next(iter(signature(**given).values())).numpy().ravel()
    np.testing.assert_allclose(served, trained, rtol=1e-5, atol=1e-6)
    rows = frame.sparkSession.createDataFrame(few[["age", "city"]], "age float, city string")
    for path in ("model.keras", "served"):
        predict = predict_udf(tmp_path / path)
        found = rows.select("age", "city", predict(age="age", city="city").alias("p")).toPandas()
        both = found.sort_values(["age", "city"]).p.to_numpy()
        order = few.assign(p=trained).sort_values(["age", "city"]).p.to_numpy()
        np.testing.assert_allclose(both, order, rtol=1e-5, atol=1e-6)


def test_the_layers_of_a_model_learn_from_its_inputs(frame):
    import keras

    age, city = keras.Input((1,), name="age"), keras.Input((1,), name="city", dtype="string")
    normal, lookup = keras.layers.Normalization(), keras.layers.StringLookup()
    known = keras.layers.StringLookup(vocabulary=["a"])
    model = keras.Model([age, city], [normal(age), lookup(city), known(city)])
    adapt(model, frame)
    assert abs(float(normal.mean[0, 0]) - 40) < 2
    assert lookup.vocabulary_size() == 10
    deep = keras.layers.Normalization()
    behind = keras.Model(age, deep(keras.layers.Rescaling(2.0)(age)))
    with pytest.raises(errors.InvalidArgument, match="takes the output of other layers"):
        adapt(behind, frame)
    with pytest.raises(errors.InvalidArgument, match="declares no inputs"):
        adapt(keras.Sequential([keras.layers.Normalization()]), frame)
    with pytest.raises(errors.SchemaError, match="'city' holds arrays.*takes one text per row"):
        adapt({"city": keras.layers.TextVectorization()}, frame.selectExpr("array(city) AS city"))


@given(
    st.lists(st.integers(0, 30_000), min_size=1, max_size=6),
    st.sampled_from([0.2, 0.05]),
    st.randoms(use_true_random=False),
)
def test_ranks_of_quantiles_are_as_exact_as_was_asked_for(sizes, error, random):
    generator = np.random.default_rng(random.getrandbits(32))
    parts = [generator.normal(i, 3, n).astype("float32").round(1) for i, n in enumerate(sizes)]
    states = []
    for part in parts:
        sketch = Sketch(error)
        for piece in np.array_split(part, 7):
            sketch.add(piece)
        states.append(sketch.state())
    values = np.sort(np.concatenate(parts))
    found = boundaries(states, 10)
    if not len(values):
        assert found == []
        return
    least, most = (np.searchsorted(values, np.float32(found), side) for side in ("left", "right"))
    wanted = np.arange(1, 10) / 10 * len(values)
    assert (np.maximum(least - wanted, wanted - most) <= error * len(values) + 1).all()
