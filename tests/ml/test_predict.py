"""Any model as a function of columns: what it takes, what it gives, in which order."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from gridflow import errors, predict_udf
from gridflow._gpu.devices import Device
from gridflow.ml import task_gpu, with_pandas
from gridflow.ml.columns import Slot, scattered, to_column, to_input
from suite.waiting import LONGEST

#: pyspark leaves the sockets that rows came by to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def twice():
    """Return a model of one input that doubles it, larger than what travels with a function."""
    import keras

    wide = keras.layers.Dense(90_000, name="wide")
    x = keras.Input((2, 2), name="x")
    model = keras.Model(x, {"twice": 2 * x, "least": keras.ops.min(x, axis=(1, 2))})
    rest = keras.Model(x, keras.ops.sum(wide(keras.layers.Flatten()(x)), axis=1, keepdims=True))
    return model, rest


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Give a SavedModel of several signatures, of strings, images and numbers."""
    import tensorflow as tf

    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="image")])
        def sizes(self, image):
            return {"bytes": tf.strings.length(image), "again": image}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None, None], tf.int64, name="ids"),
                tf.TensorSpec([None], tf.float32, name="scale"),
            ]
        )
        def scaled(self, ids, scale):
            return {"sum": tf.cast(tf.reduce_sum(ids, 1), tf.float64) * tf.cast(scale, tf.float64)}

        @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="alone")])
        def alone(self, alone):
            return {"y": alone}

    module = Served()
    path = str(tmp_path_factory.mktemp("saved"))
    signatures = {"sizes": module.sizes, "scaled": module.scaled, "alone": module.alone}
    tf.saved_model.save(module, path, signatures)
    return path


def test_arrays_of_any_shape_go_in_and_out_in_order(spark, tmp_path):
    model, large = twice()
    flat = "array(float(id), id + 1, id + 2, id + 3)"
    rows = spark.range(0, 2500, 1, 3).selectExpr("id", f"{flat} AS flat", f"{flat} AS other")
    rows = rows.selectExpr("*", "array(array(flat[0], flat[1]), array(flat[2], flat[3])) AS deep")
    large.save(tmp_path / "large.keras")
    both, sums = predict_udf(model, batch_size=700), predict_udf(tmp_path / "large.keras")
    twice_only = predict_udf(model, outputs={"twice": "array<array<double>>"})
    found = rows.select("id", both("flat").alias("p"), both("deep").alias("q"), sums("deep"))
    kinds = dict(found.dtypes)
    assert kinds["p"] == "struct<twice:array<array<float>>,least:float>"
    table = found.toArrow().to_pylist()
    assert [row["id"] for row in table] == list(range(2500))
    for row in table[::311]:
        i = row["id"]
        assert row["p"] == {"twice": [[2 * i, 2 * i + 2], [2 * i + 4, 2 * i + 6]], "least": i}
        assert row["p"] == row["q"]
    wide = rows.limit(3).select(twice_only("flat").alias("r"))
    assert wide.dtypes == [("r", "struct<twice:array<array<double>>>")]
    spark.udf.register("doubled", both)
    rows.createOrReplaceTempView("rows_of_predict")
    said = spark.sql("SELECT doubled(other).least AS least FROM rows_of_predict WHERE id = 77")
    assert said.toArrow().to_pylist() == [{"least": 77.0}]


def test_signatures_of_saved_models_with_strings_images_and_nulls(spark, saved):
    with pytest.raises(errors.InvalidArgument, match=r"no signature 'serving_default'.*'scaled'"):
        predict_udf(saved)
    with pytest.raises(errors.InvalidArgument, match="takes a single value instead of rows"):
        predict_udf(saved, signature="alone")
    with pytest.raises(errors.InvalidArgument, match=r"no input 'idz'; it has .*'ids'"):
        predict_udf(saved, signature="scaled", inputs=["idz", "scale"])
    sizes = predict_udf(saved, signature="sizes", nulls="null")
    scaled = predict_udf(f"file://{saved}", signature="scaled", inputs=["scale", "ids"])
    rows = spark.sql(
        "SELECT * FROM VALUES (1, X'FFD8', 2f, array(1L, 2L)), (2, NULL, 1f, array(3L, 4L)), "
        "(3, X'00', -1f, array(5L, 6L)) AS t(k, image, scale, ids)"
    ).selectExpr("*", "hex(image) AS name")
    found = rows.select("k", sizes("name").alias("p"), scaled("scale", "ids").alias("s"))
    assert found.dtypes[1:] == [("p", "struct<again:string,bytes:int>"), ("s", "double")]
    table = {row["k"]: row for row in found.toArrow().to_pylist()}
    assert [table[k]["p"] and table[k]["p"]["bytes"] for k in (1, 2, 3)] == [4, None, 2]
    assert [table[k]["s"] for k in (1, 2, 3)] == [6.0, 7.0, -11.0]
    image = predict_udf(saved, signature="sizes", outputs="bytes", nulls="null")
    assert [row.p for row in rows.select(image("image").alias("p")).collect()] == [2, None, 1]
    with pytest.raises(Exception, match="input 'image' contains nulls.*nulls='null'"):
        rows.select(predict_udf(saved, signature="sizes", outputs="bytes")("image")).toArrow()
    with pytest.raises(Exception, match="Invalid UTF8.*outputs={'again': 'binary'}"):
        rows.select(predict_udf(saved, signature="sizes", nulls="null")("image")).toArrow()
    again = predict_udf(saved, signature="sizes", nulls="null", outputs={"again": "binary"})
    same = rows.select("image", again("image").again.alias("p")).collect()
    assert [row.image for row in same] == [row.p for row in same]


def test_functions_that_make_functions_as_of_pyspark(spark):
    def make():
        def predict(x, y):
            return {"total": x.sum(axis=1) + y, "pair": np.stack([y, -y], axis=1)}

        return predict

    def make_rows():
        return lambda x: [{"a": float(value), "b": str(value)} for value in x]

    def make_list():  # in batches of 2, the last one of which has a single row
        return lambda x: [2 * float(value) for value in x]

    kind = "struct<total: double, pair: array<double>>"
    rows = spark.range(5).selectExpr("id", "array(double(id), 1d) AS x", "double(id) AS y")
    predict = predict_udf(make, outputs=kind, inputs={"x": (2,), "y": ()}, batch_size=2)
    listed = predict_udf(make_rows, outputs="struct<b: string, a: double>")
    doubled = predict_udf(make_list, outputs="double", batch_size=2)
    columns = [predict(y="y", x="x").alias("p"), listed("y").alias("q"), doubled("y").alias("z")]
    for row in rows.coalesce(1).select("id", *columns).collect():
        assert row.z == 2 * row.id
        assert (row.p.total, row.p.pair) == (2 * row.id + 1, [row.id, -row.id])
        assert (row.q.a, row.q.b) == (row.id, str(float(row.id)))
    with pytest.raises(
        errors.InvalidArgument, match="for a function, outputs= must be the Spark type"
    ):
        predict_udf(make)
    with pytest.raises(Exception, match=r"the function takes \(x, y\), got 1 columns"):
        rows.select(predict_udf(make, outputs=kind)("x")).toArrow()
    for made in (
        lambda x, times=2, *, more=0: x[:, 0] * times + more,
        lambda *every: every[0][:, 0],
    ):
        some = predict_udf(lambda made=made: made, outputs="double")
        rows.select(some("x")).toArrow()
    pairs = predict_udf(lambda: lambda x: (x, x, x), outputs="struct<a: double, b: double>")
    with pytest.raises(Exception, match="the model returned 3 outputs, not 2"):
        rows.select(pairs("x")).toArrow()


def test_a_function_returns_moments_and_days(spark):
    def make():
        return lambda x: {"at": x.astype("datetime64[us]"), "day": x.astype("datetime64[D]")}

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        moments = predict_udf(make, outputs="struct<at: timestamp, day: date>")
        row = spark.range(1, 2).select(moments("id").alias("p"))
        assert row.selectExpr("unix_micros(p.at)", "unix_date(p.day)").collect() == [(1, 1)]
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


def test_a_subclassed_model_brings_its_own_class(spark, tmp_path, by_value):
    import keras

    class Plus(keras.Model):
        def __init__(self, more=1.0, **about):
            super().__init__(**about)
            self.more = more

        def call(self, x):
            return {"plus": x[:, 0] + self.more, "all": x}

        def get_config(self):
            return {"more": self.more}

    model = Plus(3.0)
    with pytest.raises(errors.InvalidArgument, match="this Plus can't be saved.*not yet been b"):
        predict_udf(model)
    model(np.zeros((1, 2)))
    rows = spark.range(3).selectExpr("double(id) AS a", "double(1) AS b")
    found = rows.select(predict_udf(model, outputs="plus")("a", "b").alias("p")).collect()
    assert sorted(row.p for row in found) == [3.0, 4.0, 5.0]
    model.save(tmp_path / "plus.keras")
    with pytest.raises(errors.GridflowError, match="custom_objects="):
        predict_udf(tmp_path / "plus.keras")
    own = predict_udf(tmp_path / "plus.keras", custom_objects={"Plus": Plus}, outputs="plus")
    assert sorted(row.p for row in rows.select(own("a", "b").alias("p")).collect()) == [3, 4, 5]


def test_names_that_keras_makes_up_are_no_obstacle(spark, tmp_path):
    import keras

    rows = spark.range(3).selectExpr("double(id) AS a", "double(10) AS b")
    line = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    line.save(tmp_path / "line.keras")
    for _ in range(2):  # each load names its tensors anew, and the worker keeps the first model
        predict = predict_udf(tmp_path / "line.keras")
        assert sorted(row.p for row in rows.select(predict("a").alias("p")).collect()) == [0, 1, 2]
    a, b = keras.Input((1,)), keras.Input((1,))
    apart = rows.select(predict_udf(keras.Model([a, b], a - 2 * b))("a", "b").alias("p"))
    assert sorted(row.p for row in apart.collect()) == [-20, -19, -18]
    x = keras.Input((3, 1))
    model = keras.Model(x, keras.layers.LSTM(2, return_state=True, name="lstm")(x))
    found = rows.selectExpr("array(a, a, b) AS x").select(predict_udf(model)("x").alias("p"))
    found = found.select("p.*")
    assert found.columns == ["lstm", "lstm_1", "lstm_2"]
    for row in found.collect():
        assert row.lstm == row.lstm_1 != row.lstm_2


def test_custom_layers_inside_other_layers_are_sent_along(spark):
    import keras

    class Plus(keras.layers.Layer):
        def call(self, x):
            return x + 1

    inner = keras.Sequential([keras.Input((1,)), Plus()])
    model = keras.Sequential([keras.Input((1,)), inner, keras.layers.Dense(1)])
    model.set_weights([np.ones((1, 1)), np.zeros(1)])
    rows = spark.range(3).selectExpr("double(id) AS a")
    found = rows.select(predict_udf(model)("a").alias("p")).collect()
    assert sorted(row.p for row in found) == [1, 2, 3]


def test_vectors_and_streams(spark, tmp_path):
    from pyspark.ml.linalg import Vectors

    import keras

    sums = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    predict = predict_udf(sums)
    vectors = [Vectors.dense(1, 2, 3), Vectors.sparse(3, [1], [5.0])]
    rows = spark.createDataFrame([(vector,) for vector in vectors], ["v"])
    assert sorted(row.p for row in rows.select(predict("v").alias("p")).collect()) == [5.0, 6.0]
    spark.range(40).selectExpr("float(id) AS a").write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("a float").parquet(str(tmp_path / "in"))
    query = (
        stream.select("a", predict("a", "a", "a").alias("p"))
        .writeStream.format("memory")
        .queryName("predicted_stream")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    found = spark.table("predicted_stream").collect()
    assert len(found) == 40
    assert all(row.p == 3 * row.a for row in found)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_predict_in_workers_of_their_own(spark, tmp_path, backend):
    import keras

    sums = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    sums.save(tmp_path / "m.keras")
    predict = predict_udf(tmp_path / "m.keras", backend=backend, batch_size=4)
    rows = spark.range(0, 11, 1, 1).selectExpr("id", "float(id) AS a")
    found = rows.select("id", predict("a", "a").alias("p")).collect()
    assert [row.p for row in found] == [2 * i for i in range(11)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "predict_udf takes a Keras model"),
        ("/nowhere/m.keras", "nowhere/m.keras doesn't exist"),
        ("s3nowhere://a/b", "can't be read"),
        (__file__, "is not a .keras file"),
        (str(Path(__file__).parent), "a folder without saved_model.pb"),
    ],
)
def test_what_is_no_model_is_refused(given, said):
    with pytest.raises(errors.InvalidArgument, match=said):
        predict_udf(given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"custom_objects": "Mine"}, "maps names to classes or functions.*got 'Mine'"),
        ({"safe_mode": "no"}, "safe_mode.*'no'"),
        ({"outputs": {"bytes": 7}}, "7 in outputs= is not a Spark type"),
        ({"outputs": ["bytes", "bytes"]}, "outputs= names an output twice"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(spark, saved, options, said):
    with pytest.raises(errors.InvalidArgument, match=said):
        predict_udf(saved, signature="sizes", **options)


def test_an_archive_that_is_no_keras_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.keras", "w") as archive:
        archive.writestr("metadata.json", "[]")
    with pytest.raises(errors.InvalidArgument, match=r"m\.keras is not a \.keras file"):
        predict_udf(tmp_path / "m.keras")


@pytest.mark.parametrize(
    ("values", "kind", "slot", "said"),
    [
        ([[1.0], [1.0, 2.0]], "list<double>", Slot((2,)), "arrays of 1 and of 2 items"),
        ([[1.0, 2.0]], "list<double>", Slot((3,)), r"rows of the shape \(2,\), and .* takes \(3\)"),
        ([1, None], "int64", Slot((), "int32"), "contains nulls"),
        ([[1.0, None]], "list<double>", Slot((2,), "float32"), "contains nulls"),
        (["a"], "string", Slot((), "float32"), "holds text or bytes"),
        ([1], "int64", Slot((), "string"), r"holds numbers \(int64\)"),
        ([1], "duration", Slot(()), "duration.*Cast it"),
        ([1, None], "date32", Slot((), "float32"), "contains nulls"),
        ([1, None], "timestamp[us]", Slot((), "float32"), "contains nulls"),
        ([{"a": 1}], "struct", Slot(()), "struct<a: int64>: give one of its fields"),
    ],
)
def test_columns_that_an_input_cannot_take(values, kind, slot, said):
    import pyarrow as pa

    kinds = {
        "list<double>": pa.list_(pa.float64()),
        "duration": pa.duration("s"),
        "struct": pa.struct({"a": pa.int64()}),
    }
    column = pa.array(values, kinds.get(kind) or pa.type_for_alias(kind))
    with pytest.raises(errors.GridflowError, match=said):
        to_input(column, slot, "x")


def test_columns_become_inputs_and_outputs_columns():
    import pyarrow as pa

    flat = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.int64()))
    assert to_input(flat, Slot((2, 2), "float32"), "x").shape == (2, 2, 2)
    assert to_input(flat[1:], Slot((None,), "int32"), "x").tolist() == [[5, 6, 7, 8]]
    with_nan = to_input(pa.array([1, None, 3]), Slot((1,), "float32"), "x")
    assert np.isnan(with_nan[1, 0])
    assert with_nan.shape == (3, 1)
    assert to_input(pa.array([True, False]), Slot((), "bool"), "x").tolist() == [True, False]
    nested = pa.list_(pa.list_(pa.float32()))
    cube = np.arange(12, dtype="float64").reshape(2, 3, 2)
    assert to_column(cube, nested, "y").to_pylist() == cube.tolist()
    assert to_column(np.zeros((2, 1)), pa.float32(), "y").to_pylist() == [0.0, 0.0]
    assert to_column(np.array([b"\xc3\x9c"], object), pa.string(), "y").to_pylist() == ["Ü"]
    with pytest.raises(errors.DataError, match=r"rows of the shape \(3, 2\)"):
        to_column(cube, pa.list_(pa.float32()), "y")
    placed = scattered(pa.array([1, 2]), np.array([True, False, True, False]))
    assert placed.to_pylist() == [None, 1, None, 2]


@pytest.mark.parametrize(
    "vectors",
    [
        [(1, None, None, [1.0, 2.0]), (0, 3, [2], [5.0])],  # dense and sparse
        [(0, 2, [1], [5.0]), (0, 3, [2], [5.0])],
        [(1, None, None, [1.0]), (1, None, None, [1.0, 2.0])],
    ],
)
def test_vectors_of_different_sizes_are_no_input(vectors):
    import pyarrow as pa

    parts = zip(*vectors, strict=True)
    kinds = [pa.int8(), pa.int32(), pa.list_(pa.int32()), pa.list_(pa.float64())]
    columns = [pa.array(values, kind) for values, kind in zip(parts, kinds, strict=True)]
    column = pa.StructArray.from_arrays(columns, ["type", "size", "indices", "values"])
    with pytest.raises(errors.DataError, match=r"'x' has vectors of size \d and of size \d"):
        to_input(column, Slot((None,)), "x")


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (np.array([1, 200]), "int8", r"the value 200, which doesn't fit tinyint \(-128 to 127\)"),
        (np.array([1.0, 128.0]), "int8", "128.0, .*tinyint"),
        (np.array([[1, -129]]), "list<int8>", "-129, .*tinyint"),
        (np.array([200], "uint8"), "int8", "200, .*tinyint"),
        (np.array([1, np.nan]), "int32", r"nan, .*int \(-2147483648 to 2147483647\)"),
        (np.array([2.0**31], "float32"), "int32", "2147483648.0, .*int"),
        (np.array([1e20], "float32"), "int64", r"1.0.*e\+20, .*bigint"),
        (np.array([2.0**63]), "int64", r"9.223372036854776e\+18, .*bigint"),
        (np.array([np.inf]), "int16", "inf, .*smallint"),
        (np.array([np.nan]), "bool", "nan, which doesn't fit boolean"),
        (np.array([1, 2**64 - 1], "uint64"), "int64", "18446744073709551615, .*bigint"),
        (np.array([1e9]), "decimal128", "overflow"),
        (np.array([None, 300], object), "int8", "300 not in range"),
        (np.array([2**70], object), "int64", "too large"),
        (np.array([[1.0], [2.0, 300.0]], object), "list<int8>", "300.0, .*tinyint"),
        (np.array([b"x"], object), "int32", "'x'"),
        (np.array([{"a": np.nan}], object), "struct<a: int32>", "truncated"),
        (np.float32(7), "float32", "must have one value for each row; got .*7"),
        (None, "float32", "one value for each row; got None"),
    ],
)
def test_an_output_that_its_column_cannot_hold_is_an_error(values, kind, said):
    import pyarrow as pa

    kinds = {
        "list<int8>": pa.list_(pa.int8()),
        "decimal128": pa.decimal128(5, 2),
        "struct<a: int32>": pa.struct({"a": pa.int32()}),
    }
    with pytest.raises(errors.DataError, match=f"the output 'y' .*({said})"):
        to_column(values, kinds.get(kind) or pa.type_for_alias(kind), "y")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (np.array([-128.9, 127.9, -0.5]), "int8", [-128, 127, 0]),
        (np.array([-(2.0**63), 2.0**62]), "int64", [-(2**63), 2**62]),
        (np.array([0, 2, -1]), "bool", [False, True, True]),
        (np.array([True, False]), "int8", [1, 0]),
        (np.array([2**64 - 1], "uint64"), "float64", [2.0**64]),
        (np.array([None, 3.7], object), "int32", [None, 3]),
        (np.array([1e300, np.nan]), "float32", [np.inf, np.nan]),
        (np.array([1.5, 2.5], "float16"), "int32", [1, 2]),
        (np.array([], "float64"), "int8", []),
    ],
)
def test_an_output_is_cast_as_spark_does(values, kind, expected):
    import pyarrow as pa

    found = to_column(values, pa.type_for_alias(kind), "y")
    assert found.type == pa.type_for_alias(kind)
    np.testing.assert_equal(found.to_pylist(), expected)


def test_rows_of_different_length_keep_their_nulls():
    import pyarrow as pa

    rows = np.array([np.array([1.9]), None, np.array([2, 3]), np.array([])], object)
    found = to_column(rows, pa.list_(pa.int16()), "y")
    assert found.to_pylist() == [[1], None, [2, 3], []]
    assert to_column(rows[:0], pa.list_(pa.int16()), "y").to_pylist() == []
    assert to_column(list(rows), pa.list_(pa.int16()), "y").to_pylist() == found.to_pylist()


@pytest.mark.parametrize(
    ("values", "dtype", "said"),
    [
        ([300], "uint8", r"the value 300, which doesn't fit its type uint8 \(0 to 255\)"),
        ([-1], "uint16", "-1"),
        ([2**40], "int32", "1099511627776"),
        ([float("nan")], "int32", "nan"),
        ([1e10], "int32", "10000000000.0"),
    ],
)
def test_a_number_that_an_input_cannot_hold_is_an_error(values, dtype, said):
    import pyarrow as pa

    with pytest.raises(errors.DataError, match=f"the model's input 'x' holds .*{said}"):
        to_input(pa.array(values), Slot((), dtype), "x")
    assert to_input(pa.array([3.7]), Slot((), dtype), "x").tolist() == [3]


def test_a_cast_that_overflows_fails_the_query_as_spark_does(spark):
    def make():
        return lambda x: x

    rows = spark.range(3).selectExpr("double(id * 100) AS x")
    cast = predict_udf(make, outputs="tinyint")
    assert [row[0] for row in rows.where("x < 150").select(cast("x")).collect()] == [0, 100]
    with pytest.raises(Exception, match="CAST_OVERFLOW"):
        rows.selectExpr("cast(x AS tinyint)").collect()
    with pytest.raises(Exception, match="the output 'output' has the value 200.0.*tinyint"):
        rows.select(cast("x")).collect()


@pytest.mark.slow
def test_it_predicts_over_spark_connect(tmp_path):
    import keras

    wide = keras.layers.Dense(90_000, kernel_initializer="ones")
    x = keras.Input((2,), name="x")
    keras.Model(x, keras.ops.max(wide(x), axis=1)).save(tmp_path / "m.keras")
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("on_connect.py"), tmp_path / "m.keras"],
        env={
            **os.environ,
            "PYTHONPATH": str(root / ".cache" / "spark-connect"),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert "all over Connect: ok" in done.stdout, done.stderr[-3000:]


def test_a_task_predicts_on_its_own_gpu(monkeypatch):
    from pyspark import TaskContext

    given = SimpleNamespace(addresses=["2"])
    task = SimpleNamespace(resources=lambda: {"gpu": given})
    monkeypatch.setattr(TaskContext, "get", lambda: task)
    every = [Device(i, f"GPU-{i}", 1000) for i in range(4)]
    monkeypatch.setattr(task_gpu.devices, "find", lambda: every)
    first = {"CUDA_VISIBLE_DEVICES": "1,2,3"}
    monkeypatch.setattr(task_gpu.devices, "first_environment", lambda: first)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(task_gpu, "_shown", [])
    with task_gpu.device("keras") as place:
        assert (place, os.environ["CUDA_VISIBLE_DEVICES"]) == (1, "1,2,3")
        assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    given.addresses = ["GPU-3"]  # of the next task in the same process
    with task_gpu.device("saved_model") as place:
        assert place == 2
    given.addresses = ["0"]
    with pytest.raises(
        errors.GridflowError, match="the GPU 0 to this task, but its host doesn't have or hid"
    ):
        with task_gpu.device("keras"):
            pass
    monkeypatch.setattr(task_gpu, "_shown", [])
    given.addresses = ["2"]
    with task_gpu.device("function") as place:
        assert (place, os.environ["CUDA_VISIBLE_DEVICES"]) == (0, "2")
    given.addresses = ["3"]
    with pytest.raises(errors.GridflowError, match=r"spark\.python\.worker\.reuse=false"):
        with task_gpu.device("function"):
            pass


def test_a_task_without_gpus_sees_none_unless_its_executor_was_told_so(monkeypatch):
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(resources=dict))
    monkeypatch.setattr(os, "environ", {})
    for first, seen in (({}, "-1"), ({"CUDA_VISIBLE_DEVICES": "0"}, None)):
        os.environ.clear()
        monkeypatch.setattr(task_gpu.devices, "first_environment", lambda first=first: first)
        with task_gpu.device("keras") as place:
            assert place is None
            assert os.environ.get("CUDA_VISIBLE_DEVICES") == seen


def test_what_spark_before_4_1_gets_is_pandas_with_whole_numbers_left_whole():
    numbers, texts = pa.array([1, None, 3]), pa.array([["a"], None, []])
    struct = pa.StructArray.from_arrays([numbers, texts], ["n", "t"])
    nested = pa.StructArray.from_arrays([struct, numbers], ["s", "n"])
    plain = with_pandas._to_pandas(numbers)
    assert plain.dtype == object
    assert plain.tolist() == [1, None, 3]
    assert with_pandas._to_pandas(texts).tolist() == [["a"], None, []]
    frame = with_pandas._to_pandas(struct)
    assert list(frame.columns) == ["n", "t"]
    assert frame["n"].tolist() == [1, None, 3]
    with pytest.raises(errors.SchemaError, match=r"unix_micros\(column\)"):
        with_pandas._to_arrow(with_pandas._to_pandas(nested.field("n")).astype("datetime64[ns]"))
