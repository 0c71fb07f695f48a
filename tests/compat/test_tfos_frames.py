"""Rows of ``df.rdd`` that travel as columns: the same ones as Spark's own."""

from __future__ import annotations

import itertools
import pickle
import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from gridflow._launch.spark import session
from gridflow.compat.tfos import TFCluster, _queues

# Spark leaves the sockets of collected rows to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

SQL = (
    "id",
    "if(id % 5 = 0, null, cast(id as int)) `an int`",
    "cast(id as tinyint) tiny",
    "cast(id as smallint) small",
    "cast(id / 3 as float) `a.b`",
    "if(id = 4, double('nan'), id / 7) d",
    "id % 2 = 0 odd",
    "if(id = 3, null, concat('n° ', id)) text",
    "if(id = 6, null, transform(sequence(0, int(id)), x -> cast(x / 3 as float))) floats",
    "array(id, if(id = 2, null, 5)) longs",
    "array(cast(id as string), null) texts",
    "cast(array() as array<double>) none",
    "transform(sequence(1, 3), x -> cast(x + id / 3 as float)) even",
)


def same(rows):
    """Return rows with their types and names, so that NaN is what it is."""
    return [(row.__fields__, [repr((type(value), value)) for value in row]) for row in rows]


def keeper(folder):
    """Return a feeder that puts the rows of a partition into a file."""

    def keep(batches):
        import pickle

        from pyspark import TaskContext

        number = TaskContext.get().partitionId()
        (folder / f"{number:02}").write_bytes(pickle.dumps(list(batches)))

    return keep


def kept(folder):
    """Return the rows, read three at a time."""
    batches = itertools.chain(*(pickle.loads(p.read_bytes()) for p in sorted(folder.iterdir())))
    parts = [_queues.rows_of(b.slice(at, 3)) for b in batches for at in range(0, b.num_rows, 3)]
    return list(itertools.chain(*parts))


@pytest.fixture
def frame(spark):
    session.run_this_python_where_it_can(spark)
    return spark.range(0, 23, 1, 3).selectExpr(*SQL)


def test_rows_are_those_that_spark_makes(frame, tmp_path):
    rdd = frame.rdd
    assert _queues.of_frame(rdd) == _queues.RddRows(frame, None)
    _queues.feed(_queues.of_frame(rdd), keeper(tmp_path))
    assert same(kept(tmp_path)) == same(rdd.collect())


def test_functions_get_the_rows_that_spark_makes(spark, frame, tmp_path):
    factor = spark.sparkContext.broadcast(3)

    def numbered(partition, rows):
        return (repr((partition, factor.value, row, type(row.d))) for row in rows)

    rdd = frame.rdd.filter(lambda row: row.id != 9).mapPartitionsWithIndex(numbered)
    _queues.feed(_queues.of_frame(rdd), keeper(tmp_path))
    assert kept(tmp_path) == rdd.collect()


def test_other_rows_come_as_spark_makes_them(spark, frame):
    assert _queues.of_frame(frame.rdd.map(tuple)).frame is frame
    others = [
        frame.rdd.union(frame.rdd),
        frame.rdd.repartition(2),
        frame.rdd.zip(frame.rdd),
        frame.rdd.barrier().mapPartitions(list),
        spark.sparkContext.parallelize([1]),
        *(
            spark.range(3).selectExpr(columns).rdd
            for columns in ("timestamp'2020-01-01' x", "decimal(1) x", "struct(1) x")
        ),
        spark.range(3).selectExpr("id x", "id x").rdd,
    ]
    assert [_queues.of_frame(each) for each in others] == [None] * len(others)


def test_what_was_kept_is_what_is_read(frame):
    kept = frame.rdd.map(tuple).persist()
    assert _queues.of_frame(kept) is None
    assert _queues.of_frame(kept.map(list)) is None
    kept.unpersist()
    assert _queues.of_frame(frame.rdd.map(tuple)) is not None
    root = frame.rdd.persist()
    assert _queues.of_frame(root.map(tuple)) is None
    root.unpersist()


def test_batches_are_of_bounded_size():
    draw = random.Random(3)
    rows = [{"n": n, "x": [float(n)] * draw.randrange(4000)} for n in range(700)]
    kinds = pa.schema([("c0", pa.int64()), ("c1", pa.list_(pa.float32()))])
    batches = pa.Table.from_pylist([{"c0": r["n"], "c1": r["x"]} for r in rows], kinds).to_batches(
        max_chunksize=300
    )
    columns = list(_queues.pieces(batches, ["n", "x"]))
    objects = list(_queues.batches([(r["n"], r["x"]) for r in rows]))
    for found in (columns, objects):
        assert max(batch.nbytes for batch in found) < 3 * _queues.BATCH_BYTES
        assert len(found) > 5
    assert [row.asDict() for b in columns for row in _queues.rows_of(b)] == rows
    assert [row for b in objects for row in _queues.rows_of(b)] == [(r["n"], r["x"]) for r in rows]


@pytest.mark.parametrize(
    "row",
    [(1, [2.5], "x"), [1, (2,)], 7, None, b"bytes", {"a": {1, 2}}, np.float32(2), lambda x: x + 1],
    ids=lambda row: type(row).__name__,
)
def test_rows_stay_what_they_are(row):
    (batch,) = _queues.batches([row])
    (found,) = _queues.rows_of(batch)
    assert type(found) is type(row)
    assert found(1) == 2 if callable(row) else found == row


def gather(args, ctx):
    """Write down what comes."""
    feed = ctx.get_data_feed()
    with open(f"{args}/{ctx.task_index}", "w") as file:
        while not feed.should_stop():
            for row in feed.next_batch(10):
                print(row.id, row["floats"], sep="\t", file=file)


def test_a_cluster_is_fed_a_frames_rows_each_epoch(spark, tmp_path):
    frame = spark.range(0, 100, 1, 5).select(
        "id", f.array(f.col("id").cast("float")).alias("floats")
    )
    cluster = TFCluster.run(
        spark.sparkContext, gather, str(tmp_path), 2, input_mode=TFCluster.InputMode.SPARK
    )
    cluster.train(frame.rdd, num_epochs=3)
    cluster.train(frame.rdd.map(lambda row: row), num_epochs=1)
    cluster.shutdown()
    lines = itertools.chain(*(p.read_text().splitlines() for p in tmp_path.iterdir()))
    assert sorted(lines) == sorted([f"{n}\t[{float(n)}]" for n in range(100)] * 4)


def stop_early(args, ctx):
    """Take some rows, and want no more."""
    feed = ctx.get_data_feed()
    feed.next_batch(10)
    feed.terminate()


def test_a_program_that_has_enough_leaves_the_rest_of_a_frame_unread(spark):
    frame = spark.range(0, 400_000, 1, 4).select("id", f.array(*[f.col("id")] * 20).alias("longs"))
    cluster = TFCluster.run(
        spark.sparkContext, stop_early, None, 1, input_mode=TFCluster.InputMode.SPARK
    )
    cluster.train(frame.rdd, num_epochs=2)
    cluster.train(frame.rdd.map(lambda row: row.id), num_epochs=1)
    cluster.shutdown()


def take_all(args, ctx):
    """Take what comes."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)


def test_an_error_of_a_function_on_a_frames_rows_is_the_users_own(spark):
    def bad(row):
        return 1 // (row.id - 7)

    cluster = TFCluster.run(
        spark.sparkContext, take_all, None, 1, input_mode=TFCluster.InputMode.SPARK
    )
    with pytest.raises(Exception, match="ZeroDivisionError"):
        cluster.train(spark.range(20).rdd.map(bad), num_epochs=1)
    cluster.shutdown()
