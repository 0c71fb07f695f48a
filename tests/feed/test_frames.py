"""DataFrames through a real Spark cluster of separate processes to the tensors of each rank."""

import sys

import numpy as np
import pytest

from gridflow._feed.ingest.dataframes import check, stage_frame
from gridflow._feed.ingest.partitions import check_partitions, partitions
from gridflow._feed.normalize import FeedOptions
from gridflow._feed.store import SpoolReader
from gridflow._launch.spark.session import run_this_python_where_it_can
from gridflow.errors import InvalidArgument, SchemaError

pytest.importorskip("pyspark")
#: pyspark leaves the sockets of collect() to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def feed(spark, tmp_path, monkeypatch):
    """Run the stage, one spool per partition, and return the readers by dataset."""
    run_this_python_where_it_can(spark)
    # Spark keeps Python workers by their environment: these have run no job of other tests.
    monkeypatch.setitem(spark.sparkContext.environment, "GRIDFLOW_TEST_OF", "feed")

    def run(datasets, ranks=2, options=None, repartition="auto"):
        frame, tags = stage_frame(datasets, ranks, repartition)

        def agent(batches):
            import pyarrow as pa
            from pyspark import BarrierTaskContext

            from gridflow._feed.store import SpoolWriter

            rank = BarrierTaskContext.get().partitionId()
            with SpoolWriter(tmp_path / f"rank-{rank}", options) as writer:
                for dataset in tags.datasets:
                    writer.declare(dataset)
                for dataset, rows in tags.batches(batches):
                    writer.write(dataset, rows)
            assert "tensorflow" not in sys.modules
            yield pa.RecordBatch.from_pydict({"rank": [rank]})

        done = frame.mapInArrow(agent, "rank long", barrier=True).collect()
        assert sorted(row.rank for row in done) == list(range(ranks))
        return {
            dataset: [SpoolReader(tmp_path / f"rank-{rank}", dataset) for rank in range(ranks)]
            for dataset in datasets
        }

    return run


def column(readers, name):
    return [
        value
        for reader in readers
        for batch in reader.batches()
        for value in batch.column(name).to_pylist()
    ]


def test_types_of_a_dataframe_arrive_as_they_were(spark, feed):
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            i,
            float(i),
            [float(i)] * 3,
            [[i, 1], [2, 3]],
            f"row {i}",
            bytes([i]),
            i % 2 == 0,
            Vectors.dense([i, 2.0]) if i % 2 else Vectors.sparse(2, [0], [float(i)]),
        )
        for i in range(20)
    ]
    names = ["i", "f", "a", "n", "s", "b", "t", "v"]
    frame = spark.createDataFrame(rows, names).selectExpr(
        "*", "date_from_unix_date(i) as d", "timestamp_micros(i) as ts", "cast(f as float) as f4"
    )
    readers = feed({"train": frame})["train"]
    specs = readers[0].specs
    assert specs["v"] == (np.dtype("f4"), (2,))
    assert specs["n"] == (np.dtype("i8"), (2, 2))
    assert specs["t"] == (np.dtype(bool), ())
    assert specs["s"] == specs["b"] == ("string", ())
    got = sorted(zip(*(column(readers, name) for name in specs), strict=True))
    for i, row in enumerate(got):
        values = dict(zip(specs, row, strict=True))
        assert values == {
            "i": i,
            "f": float(i),
            "a": [float(i)] * 3,
            "n": [[i, 1], [2, 3]],
            "s": f"row {i}",
            "b": bytes([i]),
            "t": int(i % 2 == 0),
            "v": [i, 2.0 if i % 2 else 0.0],
            "d": i,
            "ts": i,
            "f4": float(i),
        }


def test_several_datasets_share_the_stage_and_come_apart_again(spark, feed):
    train = spark.range(100).selectExpr("id", "id * 2 as y", "array(id, id) as only_train")
    validation = spark.range(100, 130).selectExpr("id", "cast(id as string) as y")
    readers = feed({"train": train, "validation": validation, "empty": train.where("1 = 0")})
    assert sorted(column(readers["train"], "id")) == list(range(100))
    assert sorted(column(readers["train"], "y")) == list(range(0, 200, 2))
    assert sorted(column(readers["validation"], "y")) == sorted(map(str, range(100, 130)))
    assert readers["validation"][0].schema.names == ["id", "y"]
    assert [reader.rows for reader in readers["empty"]] == [0, 0]


@pytest.mark.parametrize("rows", [0, 1, 2, 37])
def test_any_number_of_rows_starts_every_agent_and_arrives_once(spark, feed, rows):
    frame = spark.range(50).where(f"id < {rows}")
    readers = feed({"train": frame})["train"]
    assert sorted(column(readers, "id")) == list(range(rows))


def test_a_dataframe_that_is_provably_empty_still_starts_every_agent(spark, feed):
    readers = feed({"train": spark.range(5).where("1 = 0")})["train"]
    assert [reader.rows for reader in readers] == [0, 0]


def test_partitions_that_fit_are_used_as_they_lie(spark, feed):
    uneven = spark.range(0, 10, 1, 2).where("id < 5 or id = 9").cache()
    uneven.count()
    assert partitions(uneven) == 2
    frame, _ = stage_frame({"train": uneven}, 2)
    assert "Exchange" not in frame._jdf.queryExecution().executedPlan().toString()
    readers = feed({"train": uneven})["train"]
    assert [reader.rows for reader in readers] == [5, 1]
    readers = feed({"train": uneven}, repartition="always")["train"]
    assert sum(reader.rows for reader in readers) == 6
    uneven.unpersist()


def test_only_a_certain_number_of_partitions_counts(spark):
    assert partitions(spark.range(0, 10, 1, 4).selectExpr("id * 2")) == 4
    assert partitions(spark.range(10).repartition(5)) == 5
    assert partitions(spark.range(0, 10, 1, 4).coalesce(2)) is None
    assert partitions(spark.range(0, 9, 1, 1).union(spark.range(0, 9, 1, 1))) is None
    assert partitions(spark.range(10).groupBy("id").count()) is None
    lazy = spark.range(0, 10, 1, 4).coalesce(2).cache()
    assert partitions(lazy) is None
    lazy.count()
    assert partitions(lazy) is None, "a barrier stage could not be made of a coalesce"
    lazy.unpersist()


def test_nulls_follow_the_rule_in_vectors_as_well(spark, feed):
    from pyspark.ml.linalg import Vectors, VectorUDT
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("i", LongType()), StructField("v", VectorUDT())])
    rows = [(i, None if i == 3 else Vectors.dense([1.0, float(i)])) for i in range(8)]
    frame = spark.createDataFrame(rows, schema)
    readers = feed({"train": frame}, options=FeedOptions(nulls="drop"))["train"]
    assert sorted(column(readers, "i")) == [0, 1, 2, 4, 5, 6, 7]
    assert sum(reader.counts.dropped for reader in readers) == 1


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("map(id, id)", "Choose its keys"),
        ("struct(map(id, id))", "Choose its keys"),
        ("array(struct(id))", "arrays of their fields"),
        ("interval 1 day", "seconds"),
        ("null", "only nulls"),
        ("parse_json('1')", "variant_get"),
    ],
)
def test_a_column_that_can_t_be_fed_is_refused_before_anything_runs(spark, expression, hint):
    frame = spark.range(3).selectExpr(f"{expression} as odd")
    with pytest.raises(
        SchemaError, match=rf"'odd(\.col1)?' of dataset 'train' has the type .*{hint}"
    ):
        check({"train": frame})


def test_names_and_arguments_are_checked(spark):
    frame = spark.range(3)
    with pytest.raises(InvalidArgument, match="identifier"):
        check({"my data": frame})
    with pytest.raises(InvalidArgument, match="no dataset"):
        check({})
    with pytest.raises(SchemaError, match="'id' of dataset 'train' is there 2 times"):
        check({"train": frame.selectExpr("id", "id")})
    with pytest.raises(SchemaError, match="names that begin with"):
        check({"train": frame.selectExpr("id as __gridflow_x")})
    with pytest.raises(InvalidArgument, match="Did you mean 'always'"):
        check_partitions({"train": frame}, 2, "alway")
    with pytest.raises(InvalidArgument, match="supports only one dataset"):
        check_partitions({"train": frame, "test": frame}, 2, "never")


def test_never_repartitioned_rows_need_a_partition_for_each_rank(spark):
    with pytest.raises(InvalidArgument, match="the DataFrame has 3, and the job has 2 such tasks"):
        check_partitions({"train": spark.range(9).repartition(3)}, 2, "never")
    check_partitions({"train": spark.range(9).repartition(3)}, 2, "auto")
    # Not known before it runs.
    check_partitions({"train": spark.range(9).groupBy("id").count()}, 2, "never")


def test_never_repartitioned_rows_are_not_merged_in_a_barrier_stage(spark):
    merged = {"train": spark.range(0, 9, 1, 4).coalesce(2).where("id > 1")}
    with pytest.raises(InvalidArgument, match=r"Call df.repartition\(2\), or leave repartition="):
        check_partitions(merged, 2, "never", is_barrier=True)
    check_partitions(merged, 2, "never")  # without one, each task starts by itself
    check_partitions(merged, 2, "auto", is_barrier=True)
