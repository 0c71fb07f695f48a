"""gridflow.predict: a model's own process gives the values that predict_udf gives."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time

import numpy as np
import pytest
from processes import models
from py4j.protocol import Py4JError
from pyspark.errors import PythonException
from pyspark.sql import functions as f

import gridflow
from gridflow import errors
from suite.waiting import wait_for

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore:Skipping nested container:UserWarning"),  # Keras's
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Expressions of `id` and of `n`, a number between 0 and 1 that is drawn for each row.
VALUES = {
    "boolean": "id % 3 = 0",
    "tinyint": "tinyint(id % 100)",
    "smallint": "smallint(id * 3)",
    "int": "int(id * -5)",
    "bigint": "id * 10000000000",
    "float": "float(id) / 3",
    "double": "double(id) / 7",
    "date": "date_add(date'1999-12-31', int(id))",
    "timestamp": "timestamp_micros(id * 1234567890123)",
    "timestamp_ntz": "timestamp_ntz'2020-01-01 00:00:00' + make_interval(0, 0, 0, int(id))",
    "decimal": "cast(id as decimal(12, 2)) / 4",
    "string": "concat('ü', repeat('x', int(id % 5)), id)",
    "binary": "unhex(concat('00FF', lpad(hex(id), 4, '0')))",
    "array<float>": "array(float(id), float(n), -1f)",
    "array<bigint>": "array(id, id + 1)",
    "array<boolean>": "array(id % 2 = 0)",
    "array<string>": "array(concat('a', id), 'b')",
    "array<array<double>>": "array(array(double(id), 2d), array(3d, n))",
    "empty arrays": "cast(array() as array<int>)",
    "arrays of any length": "sequence(1, 1 + int(id % 2))",
    "arrays with nulls": "array(1d, if(n < 0.1, null, 2d))",
    "structs": "named_struct('a', id)",
}


def rows_of(spark, count, partitions):
    return spark.range(0, count, 1, partitions).selectExpr(
        "id", "double(hash(id)) / 4294967296d + 0.5d AS n"
    )


def seen():
    """Return a function that tells what it sees, with the rows' types."""

    def predict(*columns):
        return [
            {"seen": "|".join(f"{c.dtype}{np.asarray(c[row]).tolist()!r}" for c in columns)}
            for row in range(len(columns[0]))
        ]

    return predict


def outcome(frame):
    """Return a frame's rows, or the last line of what its query raised."""
    try:
        return sorted(frame.toArrow().to_pylist(), key=lambda row: row["id"])
    except PythonException as error:
        return re.findall(r"gridflow\.errors\.(\w+: .*)", str(error))[-1]


#: Of these, no rule makes an input of a model.
REFUSED = ("arrays of any length", "structs")


def test_it_gives_what_predict_udf_gives(spark, by_value):
    columns = {
        f"x{place}": VALUES[kind] for place, kind in enumerate(VALUES) if kind not in REFUSED
    }
    rows = rows_of(spark, 1500, 3).selectExpr(
        "id", *(f"if(n < 0.1, null, {value}) AS {name}" for name, value in columns.items())
    )
    udf = gridflow.predict_udf(seen, outputs="struct<seen: string>", nulls="null")
    found = wanted = rows
    for name in columns:
        options = {"outputs": "struct<seen: string>", "nulls": "null", "prediction": f"p{name}"}
        found = gridflow.predict(found, seen, columns=[name, "id"], **options)
        wanted = wanted.withColumn(f"p{name}", udf(name, "id"))
    assert found.dtypes == wanted.dtypes
    assert outcome(found) == outcome(wanted)
    assert outcome(found.where("id < 0")) == []


def generated(spark, chosen, types):
    """Return a table of random size with columns of random types, and how each is predicted."""
    count, partitions = chosen.choice([0, 1, 7, 300, 2500]), chosen.choice([1, 2, 5])
    columns, asked = {}, {}
    for place, kind in enumerate(chosen.sample(sorted(types), 10)):
        value, name = VALUES[kind], f"x{place}"
        if chosen.random() < 0.3:
            width = chosen.choice([0, 1, 3, 50])
            value = f"array_repeat({value}, {width})"
        rate = chosen.choice([0, 0, 0.1, 1])
        columns[name] = f"if(n < {rate}, null, {value})"
        asked[name] = {"batch_size": chosen.choice([1, 16, 1024]) if count < 1000 else 1024}
    rows = rows_of(spark, count, partitions).selectExpr(
        "id", *(f"{value} AS {name}" for name, value in columns.items())
    )
    return rows, asked


def test_generated_tables_are_predicted_as_by_predict_udf(spark, by_value):
    kind = {"outputs": "struct<seen: string>"}
    types = VALUES.keys() - REFUSED
    for seed in range(10):
        chosen = random.Random(seed)
        rows, asked = generated(spark, chosen, types)
        found = wanted = rows
        for name, more in asked.items():
            options = {**kind, **more, "nulls": "null"}
            found = gridflow.predict(found, seen, columns=[name], prediction=f"p{name}", **options)
            udf = gridflow.predict_udf(seen, **options)
            wanted = wanted.withColumn(f"p{name}", udf(name))
        assert found.dtypes == wanted.dtypes
        assert outcome(found) == outcome(wanted), f"seed {seed}"
        name = chosen.choice(sorted(asked))
        found = gridflow.predict(rows, seen, columns=[name], **kind)
        wanted = rows.withColumn("prediction", gridflow.predict_udf(seen, **kind)(name))
        assert outcome(found) == outcome(wanted), f"seed {seed}, errors"


@pytest.mark.parametrize("kind", [*REFUSED, "int", "array<float>", "arrays with nulls"])
def test_its_errors_are_those_of_predict_udf(spark, by_value, kind):
    rows = rows_of(spark, 100, 1).selectExpr("id", f"if(id = 77, null, {VALUES[kind]}) AS x")
    udf = gridflow.predict_udf(seen, outputs="struct<seen: string>")
    said = outcome(gridflow.predict(rows, seen, columns=["x"], outputs="struct<seen: string>"))
    assert said == outcome(rows.withColumn("prediction", udf("x")))
    assert kind == "int" or said.startswith(("DataError: ", "SchemaError: "))


#: What a function returns for the numbers `x`, and as which type.
RESULTS = {
    "double": lambda x: x / 3,
    "int": lambda x: x.astype("int32"),
    "boolean": lambda x: x > 3,
    "string": lambda x: [f"ü{value}" for value in x],
    "binary": lambda x: [bytes([int(value) % 256]) for value in x],
    "date": lambda x: x.astype("int64").astype("datetime64[D]"),
    "timestamp": lambda x: x.astype("int64").astype("datetime64[us]"),
    "array<float>": lambda x: np.stack([x, x], axis=1),
    "array<boolean>": lambda x: np.stack([x > 1, x > 2], axis=1),
    "array<string>": lambda x: [["a", str(value)] for value in x],
    "array<bigint>": lambda x: np.array([None, *([[1] * int(v) for v in x[1:] % 4])], object),
    "array<array<double>>": lambda x: x[:, None, None] * np.ones((2, 3)),
    "array<int>": lambda x: np.ones((len(x), 3), "int32"),
}


def test_results_of_every_type_come_back(spark, by_value):
    def make():
        def predict(x):
            return {f"r{place}": result(x) for place, result in enumerate(RESULTS.values())}

        return predict

    rows = spark.range(0, 60, 1, 2).selectExpr("id", "double(id) AS x")
    kinds = ", ".join(f"r{place}: {kind}" for place, kind in enumerate(RESULTS))
    for outputs, function in (
        (f"struct<{kinds}>", make),
        ("array<float>", lambda: lambda x: x[:, None] * [1, 2]),
    ):
        asked = {"outputs": outputs, "batch_size": 16}
        wanted = rows.withColumn("prediction", gridflow.predict_udf(function, **asked)("x"))
        found = gridflow.predict(rows, function, columns=["x"], **asked)
        assert found.dtypes == wanted.dtypes
        assert outcome(found) == outcome(wanted)


def test_a_result_beyond_its_type_is_an_error(spark, by_value):
    rows = spark.range(0, 60, 1, 1).selectExpr("id", "double(id) AS x")
    tiny = gridflow.predict(rows, lambda: lambda x: x * 1000, columns=["x"], outputs="tinyint")
    assert outcome(tiny).startswith("DataError: the output 'output' has the value 1000.0, which")


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """Give the path of a model of two inputs and two outputs."""
    import keras

    a = keras.Input((2,), name="a")
    b = keras.Input((), dtype="string", name="b")
    both = {"sum": keras.ops.sum(a, axis=1), "twice": 2 * a, "hash": keras.layers.Hashing(7)(b)}
    path = str(tmp_path_factory.mktemp("dense") / "m.keras")
    keras.Model({"a": a, "b": b}, both).save(path)
    return path


def test_models_of_several_inputs_and_outputs_in_an_ordinary_plan(spark, dense, tmp_path):
    source = str(tmp_path / "rows")
    rows_of(spark, 3000, 3).selectExpr(
        "id", "n", "array(float(id), float(n)) AS a", "string(id % 5) AS b", "float(n) AS c"
    ).write.parquet(source)
    rows = spark.read.parquet(source)
    udf = gridflow.predict_udf(dense)
    wanted = rows.withColumn("prediction", udf(a="a", b="b"))
    found = gridflow.predict(rows, dense)
    assert found.columns == [*rows.columns, "prediction"]
    assert found.dtypes == wanted.dtypes
    assert outcome(found) == outcome(wanted)
    stacked = {"columns": {"a": ["n", "c"], "b": "b"}, "outputs": "sum", "prediction": "p"}
    twice = gridflow.predict(found, dense, **stacked).where("p > 1.5 and id < 2000")
    both = twice.join(found.select("id", found.prediction.sum.alias("s")), "id").cache()
    assert both.count() == rows.where("float(n) + float(n) > 1.5 and id < 2000").count()
    assert [row.id for row in twice.orderBy("id").limit(3).collect()] == [
        row.id for row in rows.where("2 * float(n) > 1.5").orderBy("id").limit(3).collect()
    ]
    both.unpersist()
    few = found.select("prediction.sum")
    said = few._jdf.queryExecution().toString()
    assert re.search(r"Predict m\.keras\(a#\d+, b#\d+\) AS prediction#\d+, batches of 1024", said)
    assert "ReadSchema: struct<a:array<float>,b:string>" in said
    assert sum(row["sum"] for row in few.collect()) == pytest.approx(
        sum(row["prediction"]["sum"] for row in outcome(wanted))
    )


def test_vectors_signatures_and_classes_of_the_users_own(spark, by_value, tmp_path):
    import tensorflow as tf
    from pyspark.ml.linalg import Vectors

    import keras

    vectors = [(0, Vectors.dense(1, 2, 3)), (1, Vectors.sparse(3, [1], [5.0]))]
    rows = spark.createDataFrame(vectors, ["id", "v"]).selectExpr("*", "float(id) AS x", "'a' AS t")

    class Plus(keras.Model):
        def call(self, x):
            return {"plus": x[:, 0] + 1, "all": x}

    own = Plus()
    own(np.zeros((1, 3)))

    class Served(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="t")])
        def lengths(self, t):
            return {"bytes": tf.strings.length(t), "again": t}

    module, saved = Served(), str(tmp_path / "saved")
    tf.saved_model.save(module, saved, {"lengths": module.lengths})
    sums = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    sums.save(tmp_path / "sums.keras")
    asked = [
        (own, ["v"], {"outputs": "plus"}),
        (saved, None, {"signature": "lengths"}),
        (str(tmp_path / "sums.keras"), ["v"], {"backend": "torch"}),
        (str(tmp_path / "sums.keras"), ["x", "x", "x"], {"backend": "jax"}),
    ]
    for model, columns, options in asked:
        udf = gridflow.predict_udf(model, **options)
        wanted = rows.withColumn("prediction", udf(*(columns or ["t"])))
        found = gridflow.predict(rows, model, columns=columns, **options)
        assert found.dtypes == wanted.dtypes
        assert outcome(found) == outcome(wanted), options


def test_what_a_node_took_is_among_sparks_metrics(spark, dense):
    rows = rows_of(spark, 2500, 2).selectExpr("id", "array(float(id), 1f) AS a", "'x' AS b")
    frame = gridflow.predict(rows, dense)
    frame.collect()
    plan, found = frame._jdf.queryExecution().executedPlan(), {}
    while plan.nodeName() != "Predict":
        plan = plan.children().apply(0)
    for name in ("numOutputRows", "readingTime", "waitingTime", "modelTime", "rowRate"):
        found[name] = plan.metrics().apply(name).value()
    assert found["numOutputRows"] == 2500
    assert all(value > 0 for value in found.values())


@pytest.mark.parametrize("kind", ["a function", "a model"])
def test_a_stream_is_predicted(spark, by_value, tmp_path, kind, request):
    if kind == "a model":
        asked = {"model": request.getfixturevalue("dense"), "outputs": "sum"}
    else:
        function = lambda: lambda a, b: a.sum(axis=1)  # noqa: E731
        asked = {"model": function, "columns": ["a", "b"], "outputs": "float"}

    def arrive(first, count):
        spark.range(first, first + count, 1, 2).selectExpr(
            "id", "array(float(id), 1f) AS a", "'x' AS b", "timestamp_seconds(id) AS at"
        ).write.mode("append").parquet(str(tmp_path / "in"))

    arrive(0, 40)
    stream = spark.readStream.schema("id long, a array<float>, b string, at timestamp")
    stream = stream.parquet(str(tmp_path / "in")).withWatermark("at", "10 seconds")
    predicted = gridflow.predict(stream, **asked)
    windows = predicted.groupBy(f.window("at", "10 seconds")).agg(f.sum("prediction").alias("p"))

    def run(name, frame):
        query = frame.writeStream.format("parquet").option("path", str(tmp_path / name))
        query = query.option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination(120)
        return spark.read.parquet(str(tmp_path / name)).collect()

    for count in (40, 60):  # the second time from where the checkpoint was
        found = run("rows", predicted)
        assert sorted(row.prediction for row in found) == [float(i + 1) for i in range(count)]
        last = (count - 11) // 10  # the watermark
        sums = {row.window.start.second: row.p for row in run("windows", windows)}
        assert sums == {10 * i: sum(range(10 * i + 1, 10 * i + 11)) for i in range(last)}
        arrive(40, 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prediction": "ID"}, "has a column 'id' already, where predictions would go"),
        ({"prediction": 3}, "prediction= must be the name of the new column; got 3"),
        ({"columns": "id"}, "columns= must be a list of columns.*got 'id'"),
        ({"columns": ["ad"]}, "no column 'ad'; it has 'id', 'x'"),
        ({"columns": {"x": []}}, "gives the input 'x' no column"),
        ({}, "columns= must name the columns for a function's parameters"),
    ],
)
def test_columns_that_cannot_be_are_refused(spark, options, said):
    rows = spark.range(1).selectExpr("id", "id AS x")
    with pytest.raises(errors.InvalidArgument, match=said):
        gridflow.predict(rows, seen, **{"outputs": "string", **options})
    with pytest.raises(errors.InvalidArgument, match="takes a DataFrame and a model"):
        gridflow.predict(seen, rows)


def once(path, act):
    """Return a function that predicts zeros, and the first time does something else."""

    def make():
        def predict(x):
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return x * 0
            act()
            return x * 0

        return predict

    return make


def test_a_process_that_dies_or_freezes_is_replaced_for_the_next_try(spark, tmp_path, by_value):
    rows = spark.range(0, 5000, 1, 2).selectExpr("id", "double(id) AS x")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        make = once(str(tmp_path / str(number)), lambda number=number: os.kill(os.getpid(), number))
        found = gridflow.predict(rows, make, columns=["x"], outputs="double")
        assert sorted(row.id for row in found.where("prediction = 0").collect()) == list(
            range(5000)
        )

    def always():
        return lambda x: os.kill(os.getpid(), signal.SIGKILL)

    dying = gridflow.predict(rows, always, columns=["x"], outputs="double")
    with pytest.raises(Exception, match=r"process of the model always on .* signal 9.*memoryO"):
        dying.collect()


def test_a_cancelled_query_leaves_the_process_to_others(spark, tmp_path, by_value):
    path = str(tmp_path / "slow")

    def make():
        def predict(x):
            if not os.path.exists(path):
                with open(f"{path}-new", "w") as file:
                    file.write(str(os.getpid()))
                os.replace(f"{path}-new", path)
                time.sleep(3)
            return x + 1

        return predict

    rows = spark.range(0, 5000, 1, 2).selectExpr("id", "double(id) AS x")
    found = gridflow.predict(rows, make, columns=["x"], outputs="double")
    context = spark.sparkContext
    thread = _query_of(spark, found, "gridflow-cancelled")
    wait_for(lambda: os.path.exists(path), "the model computes")
    with open(path) as file:
        computing = int(file.read())
    context.cancelJobsWithTag("gridflow-cancelled")
    thread.join()
    assert sum(row.prediction - row.x for row in found.collect()) == 5000
    assert computing in {process.pid for process in models(spark)}


def _query_of(spark, frame, tag):
    from pyspark import InheritableThread

    def run():
        spark.sparkContext.addJobTag(tag)
        with contextlib.suppress(Py4JError):  # it was cancelled
            frame.collect()

    thread = InheritableThread(run)
    thread.start()
    return thread
