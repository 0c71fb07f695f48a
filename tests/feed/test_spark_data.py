"""Data of other kinds than DataFrames on Spark, and columns whose names mean more to Spark."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors

from gridflow._feed.ingest.dataframes import check, stage_frame
from gridflow._feed.ingest.frames import FrameSource, as_frames
from gridflow._launch.spark.session import run_this_python_where_it_can
from gridflow.errors import InvalidArgument, SchemaError

#: pyspark leaves the sockets of collect() to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def arrived(spark, data):
    """Return all rows by dataset, as the agents get them."""
    run_this_python_where_it_can(spark)
    frames = as_frames(spark, data, {})
    check(frames)
    frame, tags = stage_frame(frames, 1)

    def body(batches):
        import json

        import pyarrow as pa

        for name, rows in tags.batches(batches):
            text = json.dumps([name, rows.to_pylist()], default=str)
            yield pa.RecordBatch.from_pydict({"text": [text]})

    found = {}
    for row in frame.mapInArrow(body, "text string").collect():
        name, rows = json.loads(row.text)
        found.setdefault(name, []).extend(rows)
    return {name: sorted(rows, key=lambda row: json.dumps(row)) for name, rows in found.items()}


def test_what_lies_in_the_drivers_memory_becomes_dataframes(spark):
    import pandas as pd
    import pyarrow as pa

    images = np.arange(12, dtype="uint8").reshape(2, 2, 3)
    moments = np.array(["2026-01-01T12:00", "2026-01-02"], "datetime64[ns]")
    found = arrived(
        spark,
        {
            "table": pa.table({"x": [1, 2]}),
            "pandas": pd.DataFrame({"x": [1.5, None], "kind": pd.Categorical(["a", "b"])}),
            "pair": (images, np.array([0.5, 1.5], "float16")),
            "columns": {"when": moments, "words": ["one", "two"]},
        },
    )
    assert found["table"] == [{"x": 1}, {"x": 2}]
    assert [row["kind"] for row in found["pandas"]] == ["a", "b"]
    assert found["pair"] == [{"x": images[i].tolist(), "y": i + 0.5} for i in (0, 1)]
    assert found["columns"] == [
        {"when": "2026-01-01 12:00:00", "words": "one"},
        {"when": "2026-01-02 00:00:00", "words": "two"},
    ]


def test_a_column_in_memory_that_spark_cant_take_leaves_the_others_as_they_are(spark):
    import pyarrow as pa

    kinds = {
        "day": pa.array([0, 86_400_000], pa.date64()),
        "small": pa.array([{"a": 1}, {"a": 2}], pa.struct([("a", pa.uint8())])),
        "word": pa.array(["a", "b"], pa.string_view()),
        "large": pa.array([2**63, 1], pa.uint64()),
        "digits": pa.array([10**45, 1], pa.decimal256(50, 0)),
        "fine": pa.array([1, 1000], pa.timestamp("ns")),
    }
    source = FrameSource(spark, {"train": pa.record_batch(kinds)}, "auto")
    source.check(2)
    assert sorted(source.columns) == sorted(kinds)
    reasons = source.left_out["train"]
    assert reasons.keys() == {"large", "digits", "fine"}
    for name, reason in reasons.items():
        assert reason.startswith(f"column {name!r} of dataset 'train' ")
    assert "9223372036854775808 not in range" in reasons["large"]
    with pytest.raises(SchemaError, match="column 'large' of dataset 'train' has the type uint64"):
        FrameSource(spark, {"train": {"large": kinds["large"]}}, "auto")


def test_a_column_whose_type_pyspark_doesnt_know_leaves_the_others_as_they_are(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.timestampNanosTypes.enabled", "true")
    rows = session.range(0, 4, 1, 2).selectExpr(
        "id", "timestamp_nanos(id) AS t", "struct(timestamp_nanos(id) AS t) AS s", "2 * id AS x"
    )
    source = FrameSource(session, {"train": rows}, "auto")
    source.check(2)
    assert source.left_out["train"].keys() == {"t", "s"}
    assert "column 't' of dataset 'train' has the type timestamp" in source.left_out["train"]["t"]
    assert arrived(session, {"train": rows})["train"] == [{"id": i, "x": 2 * i} for i in range(4)]
    with pytest.raises(SchemaError, match="column 't' of dataset 'train' has the type timestamp"):
        FrameSource(session, {"train": rows.select("t")}, "auto")


def test_names_with_dots_and_backticks_are_names(spark):
    frame = spark.range(2).selectExpr("id AS `a.b`", "id * 2 AS `c``d`", "id AS plain")
    rows = [{"a.b": i, "c`d": 2 * i, "plain": i} for i in (0, 1)]
    assert arrived(spark, {"train": frame}) == {"train": rows}
    other = spark.sql("SELECT 'text' AS `a.b`, 1 AS `x.y`")
    assert arrived(spark, {"train": frame, "other": other}) == {
        "train": rows,
        "other": [{"a.b": "text", "x.y": 1}],
    }


def test_names_that_differ_only_in_case_are_two_columns(spark):
    frame = spark.createDataFrame([(1, 2, Vectors.dense(3.0))], ["x", "X", "v"])
    row = {"x": 1, "X": 2, "v": [3.0]}
    assert arrived(spark, {"train": frame}) == {"train": [row]}
    other = spark.sql("SELECT 4L AS X, 'text' AS V")
    assert arrived(spark, {"train": frame, "other": other}) == {
        "train": [row],
        "other": [{"X": 4, "V": "text"}],
    }


def test_fields_of_a_struct_are_fed_or_left_out_like_columns(spark):
    rows = [(1, Vectors.dense(1, 2)), (2, Vectors.sparse(2, [1], [3.0])), (3, None)]
    frame = spark.createDataFrame(rows, ["x", "v"]).selectExpr(
        "named_struct('v', v, 'never', INTERVAL '1' YEAR) AS inside", "x"
    )
    frame = frame.selectExpr(
        "IF(x < 3, named_struct('x', x, 'in.side', inside, 'twice', 1, 'twice', 2), NULL) AS s"
    )
    left_out = check({"train": frame})["train"]
    assert {name: why.split(". ")[-1] for name, why in left_out.items()} == {
        "s.in.side.never": "Cast it to int, for example to its months.",
        "s.twice": "Rename it or drop all but one.",
    }
    vectors = [[1.0, 2.0], [0.0, 3.0]]
    found = [{"s": {"x": x, "in.side": {"v": v}}} for x, v in enumerate(vectors, 1)]
    assert arrived(spark, {"train": frame}) == {"train": [{"s": None}, *found]}
    with pytest.raises(SchemaError, match="column 's.months' of dataset 'train' has the type"):
        check({"train": spark.sql("SELECT struct(INTERVAL '1' YEAR AS months) AS s")})


def test_other_kinds_of_data_are_refused_with_the_way_to_a_dataframe(spark):
    for rows, said in (
        (spark.range(3).rdd, r"is an RDD.*toDF"),
        ("rows.parquet", r"is a path or a name, 'rows.parquet'.*spark\.read"),
        ([1, 2], "is a list; it must be .* Or a Spark DataFrame"),
        (3, "is a int"),
        (spark.range(3)["id"], r"is a Column.*df\.select"),
        (spark.readStream.format("rate").load(), r"streaming.*job\.feed.*foreachBatch"),
        ({"x": np.ones(2), "y": np.ones(3)}, r"columns of different lengths: x: 2, y: 3\.$"),
    ):
        with pytest.raises(InvalidArgument, match=f"'train' .*{said}"):
            as_frames(spark, {"train": rows}, {})
    with pytest.raises(SchemaError, match="'train' has no rows"):
        as_frames(spark, {"train": np.ones(0)}, {})
    odd = {"x": np.array([1 + 2j])}
    with pytest.raises(SchemaError, match="'x' of dataset 'train' can't become a column"):
        as_frames(spark, {"train": odd}, {})
    left_out = {}
    (frame,) = as_frames(spark, {"train": {**odd, "y": np.ones(1)}}, left_out).values()
    assert frame.columns == ["y"]
    assert "can't become a column" in left_out["train"]["x"]
