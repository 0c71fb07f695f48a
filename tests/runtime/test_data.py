"""Rows on their way into the training function, over both launchers and odd partitions."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor, errors
from gridflow._feed.ingest import packing


def collect(ctx, names=("train",), **options):
    """Return what one rank sees of each dataset in an epoch, as plain lists."""
    import numpy as np

    def plain(value):
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return np.asarray(value).tolist()

    seen = {}
    for name in names:
        elements = ctx.dataset(name, **options).as_numpy_iterator()
        seen[name] = [
            tuple(map(plain, element)) if isinstance(element, tuple) else plain(element)
            for element in elements
        ]
    return seen


@pytest.fixture
def quiet(spark):
    """Make a distributor on Spark."""

    def make(num_workers=2, strategy="none", **options):
        options = {"logs": "none", "progress": False, **options}
        return TensorflowDistributor(
            num_workers, strategy, launcher=SparkLauncher(spark), **options
        )

    return make


def frame_of(spark, sizes):
    """Return a DataFrame whose partitions have these sizes, rows numbered from 0."""
    from pyspark.sql import functions as F

    bounds = np.cumsum([0, *sizes]).tolist()
    owner = sum((F.when(F.col("id") >= bound, 1).otherwise(0) for bound in bounds[1:-1]), F.lit(0))
    rows = spark.range(sum(sizes)).withColumn("part", owner)
    spread = (
        rows.repartitionById(len(sizes), "part")
        if hasattr(rows, "repartitionById")
        else rows.repartitionByRange(len(sizes), "part")
    )
    return spread.selectExpr("float(id) AS x", "double(id) * 2 AS y")


@pytest.mark.parametrize("sizes", [(7, 1), (8, 0), (1, 0), (1, 1), (3, 5)])
def test_uneven_partitions_give_equal_steps_of_real_rows(spark, quiet, sizes):
    result = quiet().run(
        collect, batch_size=2, features="x", label="y", shuffle=False, data=frame_of(spark, sizes)
    )
    ranks = [seen["train"] for seen in result.values]
    assert len(ranks[0]) == len(ranks[1]) > 0
    rows = [row for rank in ranks for x, y in rank for row in zip(x, y, strict=True)]
    assert all(y == 2 * x for x, y in rows)
    assert {x for x, _ in rows} == set(range(sum(sizes)))
    for rank, own in zip(ranks, sizes, strict=True):
        assert {len(x) for x, _ in rank} <= {1, 2}
        count = sum(len(x) for x, _ in rank)
        # Only a rank with fewer rows than steps repeats some; one without any was lent those.
        assert count == max(own or count, len(rank))
    assert result.ledger.check() == []


def test_a_model_trains_on_a_single_row_without_nan(spark, quiet):
    def train(ctx):
        import keras

        with ctx.strategy.scope():
            model = keras.Sequential(
                [keras.Input((1,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            )
            model.compile("sgd", "mse")
        rows = ctx.dataset(batch_size=4, features=[["x"]], label="y")
        return model.fit(rows, epochs=2, verbose=0).history["loss"]

    result = quiet(strategy="multi_worker_mirrored").run(train, data=frame_of(spark, (1, 0)))
    assert np.isfinite(result.value).all()


def test_no_rows_at_all_are_an_error_that_says_so(spark, quiet):
    with pytest.raises(errors.DataError, match="'train' has no rows. Check its filters"):
        quiet().run(collect, batch_size=2, features="x", data=frame_of(spark, (1, 1)).limit(0))


@pytest.fixture
def no_fallback(spark):
    """Let a query fail whose code can't be compiled; Spark runs it more slowly otherwise.

    The jar was shown to this thread by then, as if it weren't the session's first job.
    """
    name = "spark.sql.codegen.fallback"
    assert packing.can_pack(spark)
    before = spark.conf.get(name)
    spark.conf.set(name, "false")
    yield
    spark.conf.set(name, before)


@pytest.mark.usefixtures("no_fallback")
def test_every_kind_of_column_arrives_as_it_was(spark, quiet):
    frame = spark.sql(
        """
        SELECT id, float(id) / 2 AS half, id % 2 = 0 AS even, concat('n', id) AS name,
            encode(concat('b', id), 'utf-8') AS bytes, array(float(id), 1f, 2f) AS vector,
            array(array(id, 1), array(2, 3)) AS matrix
        FROM range(4)
        """
    ).coalesce(1)
    names = ["id", "half", "even", "name", "bytes", "vector", "matrix"]
    result = quiet(1).run(
        collect, batch_size=4, features=names, label="id", shuffle=False, data=frame
    )
    ((x, y),) = result.value["train"]
    order = sorted(range(4), key=lambda row: x["id"][row])
    assert y == x["id"]
    assert [x["half"][row] for row in order] == [0, 0.5, 1, 1.5]
    assert [x["even"][row] for row in order] == [True, False, True, False]
    assert [x["name"][row] for row in order] == [b"n0", b"n1", b"n2", b"n3"]
    assert [x["bytes"][row] for row in order] == [b"b0", b"b1", b"b2", b"b3"]
    assert x["vector"][order[3]] == [3, 1, 2]
    assert x["matrix"][order[3]] == [[3, 1], [2, 3]]


def test_several_datasets_with_different_columns_arrive_side_by_side(spark, quiet):
    data = {
        "train": spark.range(6).selectExpr("float(id) AS x", "float(id) AS y"),
        "validation": spark.range(100, 104).selectExpr("float(id) AS x", "float(id) AS y"),
    }
    result = quiet().run(
        collect,
        ("train", "validation"),
        batch_size=1,
        features="x",
        label="y",
        shuffle=False,
        data=data,
    )
    for name, expected in (("train", range(6)), ("validation", range(100, 104))):
        assert {x for seen in result.values for (x,), _ in seen[name]} == set(expected)


def test_names_that_differ_in_case_alone_are_two_columns_where_the_session_says_so(spark, quiet):
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.range(4).selectExpr("float(id) AS x", "float(-id) AS X", "float(id) AS y")
        for data in ({"train": frame}, {"train": frame, "other": frame}):
            columns = {"x": "x", "X": "X"}
            (seen,) = quiet(1).run(collect, batch_size=4, features=columns, data=data).values
            (batch,) = seen["train"]
            assert batch["X"] == [-x for x in batch["x"]]
            assert sorted(batch["x"]) == [0, 1, 2, 3]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_nulls_are_refused_by_name_unless_a_rule_covers_them(spark, quiet):
    frame = spark.sql("SELECT if(id = 2, NULL, float(id)) AS x FROM range(6)").coalesce(1)
    with pytest.raises(errors.DataError, match="'x'"):
        quiet(1).run(collect, batch_size=2, features="x", data=frame)
    dropped = quiet(1, nulls="drop").run(collect, batch_size=1, features="x", data=frame)
    assert len(dropped.value["train"]) == 5
    assert dropped.ledger.counts["train", 0].dropped == 1
    filled = quiet(1, nulls={"x": -1.0}).run(collect, batch_size=6, features="x", data=frame)
    assert -1.0 in filled.value["train"][0]


ODD = """
    SELECT float(id) AS x, map('a', id) AS m, if(id = 3, NULL, id) AS gaps,
        array(struct(id)) AS pairs, sequence(0, id) AS ragged, id AS twice, id AS twice
    FROM range(6)
"""


def ask_for(ctx, wanted):
    """Return the rows of x, and why other columns can't be had."""
    said = {}
    for column in wanted:
        try:
            ctx.dataset(batch_size=1, features=["x", column])
        except Exception as error:
            said[column] = str(error)
    rows = ctx.dataset(batch_size=1, features="x", label="x")
    return [float(x[0]) for x, _ in rows], said


def test_columns_that_cant_be_fed_count_only_where_they_are_asked_for(distribute, request):
    import pyarrow as pa

    if "spark" in request.node.name:
        data = request.getfixturevalue("spark").sql(ODD)
    else:
        rows = list(range(6))
        data = pa.Table.from_arrays(
            [
                pa.array(rows, pa.float32()),
                pa.array([[("a", row)] for row in rows], pa.map_(pa.string(), pa.int64())),
                pa.array([None if row == 3 else row for row in rows]),
                pa.array([[{"id": row}] for row in rows]),
                pa.array([list(range(row + 1)) for row in rows]),
                pa.array(rows),
                pa.array(rows),
            ],
            names=["x", "m", "gaps", "pairs", "ragged", "twice", "twice"],
        )
    plan = distribute().plan(ask_for, ["m"], data=data)
    assert set(plan.left_out["train"]) == {"m", "pairs", "twice"}
    assert "left out       column 'pairs' of dataset 'train' has the type " in str(plan)
    result = distribute().run(ask_for, ["m", "gaps", "pairs", "ragged", "twice"], data=data)
    assert sorted(x for rows, _ in result.values for x in rows) == [0, 1, 2, 3, 4, 5]
    assert result.ledger.check() == []
    for _, said in result.values:  # the null lies on one rank, and both refuse its column
        assert "'m' of dataset 'train' has the type map" in said["m"]
        assert "'gaps' of dataset 'train' has nulls in 1 of" in said["gaps"]
        assert "arrays of their fields" in said["pairs"]
        assert "All rows need the same length" in said["ragged"]
        assert "'twice' of dataset 'train' is there 2 times" in said["twice"]
    with pytest.raises(errors.SchemaError, match=r"'m'.*Choose its keys"):
        distribute().plan(print, data=data.select(["m"]))


NESTED = """
    SELECT id, named_struct('a', id, 'b', named_struct('c', float(id) / 2)) AS s,
        map('k', id, 'other', 0) AS m, sequence(0, id) AS any, cast(id / 8 AS decimal(9, 3)) AS d
    FROM range(6)
"""


def nested(ctx):
    features = ["id", "s.a", "s.b.c", "m.k", "any", "d"]
    rows = []
    for batch in ctx.dataset(batch_size=2, features=features):
        columns = [batch[name].numpy().tolist() for name in features if name != "any"]
        rows += zip(*columns, batch["any"].to_list(), strict=True)
    return rows


def test_structs_maps_decimals_and_arrays_of_any_length_are_fed(distribute, request):
    import pyarrow as pa

    from gridflow import Keys, Ragged

    spark_data = "spark" in request.node.name
    ids = list(range(6))
    data = (
        request.getfixturevalue("spark").sql(NESTED)
        if spark_data
        else pa.table(
            {
                "id": ids,
                "s": [{"a": i, "b": {"c": i / 2}} for i in ids],
                "m": pa.array(
                    [[("k", i), ("other", 0)] for i in ids], pa.map_(pa.string(), pa.int64())
                ),
                "any": [list(range(i + 1)) for i in ids],
                "d": pa.array([i / 8 for i in ids]).cast(pa.decimal128(9, 3)),
            }
        )
    )
    job = distribute(columns={"m": Keys("k"), "any": Ragged()})
    assert job.plan(nested, data=data).left_out == {}
    found = job.run(nested, data=data)
    rows = sorted(row for value in found.values for row in value)
    assert rows == [(i, i, i / 2, i, i / 8, list(range(i + 1))) for i in ids]


@pytest.mark.slow
def test_rows_are_dropped_for_nulls_in_any_column_that_is_fed_and_the_ledger_says_which():
    import pandas as pd

    data = pd.DataFrame(
        {"x": np.arange(6.0), "note": ["a", None, "b", None, "c", "d"], "day": [None] * 6}
    )
    data["y"] = data["x"].where(data["x"] != 1, None).astype("Float64")
    distributor = TensorflowDistributor(
        2, "none", launcher=LocalLauncher(), logs="none", progress=False, nulls="drop"
    )
    # The column of nothing but nulls has no type, so it isn't fed.
    result = distributor.run(collect, batch_size=1, features="x", label="y", data=data)
    assert sorted(x[0] for seen in result.values for x, _ in seen["train"]) == [0, 2, 4, 5]
    assert result.ledger.nulls == {"train": {"note": 2, "y": 1}}
    assert "dropped from train for nulls: 2 in note, 1 in y" in str(result.ledger)
    assert result.ledger.check() == []
    assert "that this ctx.dataset() doesn't use: 2 in 'note'." in result.logs(0)


@pytest.mark.slow
def test_a_column_that_doesnt_exist_is_named_with_those_that_do():
    from gridflow import LocalLauncher

    distributor = TensorflowDistributor(1, launcher=LocalLauncher(), logs="none", progress=False)
    with pytest.raises(errors.DataError, match="Did you mean 'x'"):
        distributor.run(collect, batch_size=1, features="xx", data={"train": np.ones(4)})
    with pytest.raises(errors.DataError, match="unknown dataset 'tra'.*Did you mean 'train'"):
        distributor.run(collect, ("tra",), batch_size=1, features="x", data={"train": np.ones(4)})


@pytest.mark.slow
def test_ranks_whose_rows_have_different_lengths_are_an_error_that_names_the_column():
    """Each rank by itself has arrays of one length."""
    distributor = TensorflowDistributor(
        2, "none", launcher=LocalLauncher(), logs="none", progress=False
    )
    rows = {"v": [[1.0, 2.0], [1.0, 2.0, 3.0]]}
    with pytest.raises(errors.DataError, match=r"column 'v' of dataset 'train'.*\(\d,\).*Padded"):
        distributor.run(collect, batch_size=1, features="v", data={"train": pa.table(rows)})


@pytest.mark.slow
def test_arrays_tables_and_pandas_are_shared_out_by_the_local_launcher():
    import pandas as pd

    from gridflow import LocalLauncher

    columns = {"x": np.arange(10, dtype="float32"), "y": np.arange(10) * 2}
    data = {
        "columns": columns,
        "pandas": pd.DataFrame(columns),
        "arrow": pa.table(columns),
        "pair": tuple(columns.values()),
    }
    result = TensorflowDistributor(
        2, "none", launcher=LocalLauncher(), logs="none", progress=False
    ).run(collect, tuple(data), batch_size=5, features="x", label="y", data=data)
    for name in data:
        rows = [
            row for seen in result.values for x, y in seen[name] for row in zip(x, y, strict=True)
        ]
        assert sorted(rows) == [(i, 2 * i) for i in range(10)]


@pytest.mark.slow
def test_the_local_launcher_lends_rows_too_where_there_are_fewer_than_workers():
    from gridflow import LocalLauncher

    options = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    distributor = TensorflowDistributor(2, "none", **options)
    result = distributor.run(collect, batch_size=4, features="x", data={"train": np.full(1, 5.0)})
    assert [seen["train"] for seen in result.values] == [[[5.0]], [[5.0]]]
    assert result.ledger.counts["train", 0].borrowed == 1
    with pytest.raises(errors.SchemaError, match="no rows"):
        distributor.run(collect, batch_size=1, features="x", data={"train": np.ones(0)})
