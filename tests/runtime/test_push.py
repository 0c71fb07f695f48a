"""Rows that are pushed into a running job: each once, in equal steps, whoever fails."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from gridflow import (
    DataError,
    Deadlines,
    InvalidArgument,
    LocalLauncher,
    NotEnoughSlots,
    SchemaError,
    SparkLauncher,
    Spool,
    TensorflowDistributor,
    TrainingFailed,
)
from gridflow._launch.spark import feeders
from suite.waiting import patience

pytestmark = [
    pytest.mark.slow,
    #: pyspark leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

QUIET = {"logs": "none", "progress": False}


def numbers(rows, first=0):
    """Return rows that know their number."""
    x = np.arange(first, first + rows)
    return {"x": np.stack([x, x + 0.5], axis=1).astype("float32"), "y": x.astype("float32")}


def loop(ctx, batch_size=8, tail="spread"):
    """Draw all batches; return their sizes, the rows, and whether it was to stop."""
    import numpy as np

    sizes, rows, stops = [], [], []
    for batch in ctx.stream(batch_size, features="x", label="y", tail=tail):
        if ctx.strategy.num_replicas_in_sync > 1:
            x, y = (ctx.strategy.experimental_local_results(part)[0] for part in batch)
        else:
            x, y = batch
        assert np.array_equal(np.asarray(x)[:, 0], np.asarray(y))
        sizes.append(len(y))
        rows += np.asarray(y).astype(int).tolist()
        stops.append(ctx.should_stop)
    return sizes, rows, stops


def fit(ctx, epochs=1, steps_per_epoch=None, fail_at=None, **options):
    """Train a linear model; return its weights, its steps and the History."""
    import os
    import signal

    import keras

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if ctx.generation == 0 and ctx.rank == 1 and batch + 1 == fail_at:
                os.kill(os.getpid(), signal.SIGKILL)

    with ctx.strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(keras.optimizers.SGD(1e-6), "mse")
    rows = ctx.stream(8, features="x", label="y", **options)
    done = model.fit(
        rows,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        verbose=0,
        callbacks=[*ctx.callbacks(), Fail()],
    )
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "steps": int(model.optimizer.iterations.numpy()),
        "loss": done.history["loss"],
        "stop": ctx.should_stop,
    }


def local(strategy="none", workers=2, **options):
    return TensorflowDistributor(workers, strategy, launcher=LocalLauncher(), **QUIET, **options)


@pytest.mark.parametrize(
    ("strategy", "backend"),
    [("none", "tensorflow"), ("multi_worker_mirrored", "tensorflow"), ("none", "jax")],
)
def test_rows_come_once_and_in_equal_steps(strategy, backend):
    with local(strategy, backend=backend).start(loop) as job:
        assert job.feed(numbers(50)) == 50
        assert job.feed(numbers(7, 50), epochs=2) == 14
    result = job.result()
    rows = sorted(row for _, rows, _ in result.values for row in rows)
    assert rows == sorted([*range(50), *range(50, 57), *range(50, 57)])
    for sizes, rows, stops in result.values:
        assert len(sizes) == -(-len(rows) // 8)
        assert stops[-1] or strategy == "none"  # where the last batch may be full
        assert not any(stops[:-1])
    if strategy != "none":
        assert {len(sizes) for sizes, _, _ in result.values} == {4}
    assert result.ledger.check() == []
    assert sum(counts.rows_in for counts in result.ledger.counts.values()) == 64


def test_keras_trains_on_a_stream_as_on_the_same_batches():
    import keras

    with local("multi_worker_mirrored").start(fit, epochs=9, steps_per_epoch=3) as job:
        for first in range(0, 128, 32):
            job.feed(numbers(32, first))
            time.sleep(0.2)
    result = job.result()
    one, other = result.values
    assert one["weights"] == other["weights"]
    # 8 steps, 3 an epoch: the third epoch has two, and no other begins.
    assert (one["steps"], len(one["loss"]), one["stop"]) == (8, 3, True)
    assert len(result.history["loss"]) == 3
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1e-6), "mse")
    data = numbers(128)
    for first in range(0, 128, 32):  # each feed is dealt out half to each rank
        halves = [slice(first, first + 16), slice(first + 16, first + 32)]
        for at in (0, 8):
            both = [slice(h.start + at, h.start + at + 8) for h in halves]
            x, y = (np.concatenate([data[name][b] for b in both]) for name in "xy")
            model.train_on_batch(x, y)
    for have, want in zip(one["weights"], model.get_weights(), strict=True):
        np.testing.assert_allclose(have, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("tail", ["spread", "repeat", "drop"])
def test_what_is_left_on_one_rank_is_dealt_out_or_left_out(tail):
    with local("multi_worker_mirrored").start(loop, tail=tail) as job:
        job.feed(numbers(16))
        # Ten rows for the one that has fewer, none for the other: 17 and 9 there.
        job.feed(numbers(1, 16))
        job.feed(numbers(16, 17))
    result = job.result()
    assert result.ledger.check() == []
    steps = {len(sizes) for sizes, _, _ in result.values}
    assert len(steps) == 1
    fed = [record for record in result.ledger.records if record.complete]
    trained = {row for _, rows, _ in result.values for row in rows}
    if tail == "drop":
        assert sum(record.rows_left_out for record in fed) == 33 - len(trained) == 1
    else:
        assert trained == set(range(33))
        assert sum(record.rows_repeated for record in fed) > 0


def test_a_worker_that_is_killed_goes_on_where_the_checkpoint_was():
    def run(fail_at):
        distributor = local("multi_worker_mirrored", checkpoint_every=3, max_restarts=1)
        with distributor.start(fit, fail_at=fail_at) as job:
            job.feed(numbers(130))
        return job.result()

    through, killed = run(None), run(5)
    assert killed.value["weights"] == through.value["weights"]
    assert killed.value["steps"] == through.value["steps"] == 9
    assert killed.value["loss"] == pytest.approx(through.value["loss"])
    assert len(killed.attempts) == 2
    assert killed.ledger.check() == []


def stop_soon(ctx):
    """End the feeding after a few batches."""
    seen = 0
    for _ in ctx.stream(8, features="x"):
        seen += 1
        if seen == 3:
            ctx.stop_feeding()
            break
    return seen


def test_the_function_ends_the_feeding_and_the_rest_isnt_read():
    with local("none", 1, spool=Spool(limit="1MiB")).start(stop_soon) as job:
        wide = {"x": np.zeros((100_000, 100), "float32")}  # 40 MB, of which 1 MiB may wait
        taken = job.feed(wide)
    assert 24 <= taken < 50_000
    assert job.result().value == 3
    (record,) = job.result().ledger.records
    assert (record.rows_fed, record.complete) == (24, False)
    assert 0 < record.rows_left_out <= taken - 24


def test_rows_that_take_long_to_make_are_not_waited_for(spark, tmp_path):
    """Once the function wants no more. Spark's tasks hear it with their next rows only."""

    def crawl(batches, folder=str(tmp_path)):
        import time
        import uuid
        from pathlib import Path

        for batch in batches:
            for _ in range(300):
                time.sleep(0.3)
                Path(folder, uuid.uuid4().hex).touch()
                yield batch.slice(0, 100)

    launcher = SparkLauncher(spark)  # from now on Spark's Python is this one
    slowly = spark.range(0, 1000, 1, 1).mapInArrow(crawl, "id long").selectExpr("id as x")
    distributor = TensorflowDistributor(1, "none", launcher=launcher, logs="none", progress=False)
    with distributor.start(stop_soon) as job:
        taken = job.feed(slowly)
    assert job.result().value == 3
    (record,) = job.result().ledger.records
    assert taken == record.rows_fed + record.rows_left_out
    assert len(list(tmp_path.iterdir())) < 150


def test_values_of_an_rdd_become_columns_as_those_of_a_dataframe():
    """Of uneven lists, structs and vectors; what doesn't go together isn't made text."""
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import Row

    def table(*rows, columns=("x", "y")):
        return pa.Table.from_batches(feeders.record_batches(rows, columns))

    uneven = table(*[([1.0] * n, n) for n in range(3)])
    even = table(([1.0, 2.0], 0), ([3.0, 4.0], 1))
    assert uneven.column("x").to_pylist() == [[], [1.0], [1.0, 1.0]]
    assert uneven.schema == even.schema
    struct = table(Row(s=Row(u=1, v="a")), Row(s=Row(u=2, v="b")), columns=None)
    assert struct.column("s").to_pylist() == [{"u": 1, "v": "a"}, {"u": 2, "v": "b"}]
    vectors = table((Vectors.dense([1, 2]), 0), (Vectors.sparse(2, {0: 3.0}), 1))
    assert vectors.schema.field("x").type == pa.list_(pa.float32())
    assert vectors.column("x").to_pylist() == [[1, 2], [3, 0]]
    assert table((["a", "b"], 1), (["c", "d"], 2)).column("x").to_pylist() == [
        ["a", "b"],
        ["c", "d"],
    ]
    for mixed in [(1.0, "s"), ("s", 1.0), ([1.0, "s"], ["a", "b"])]:
        with pytest.raises(SchemaError):
            table(*[(value, 0) for value in mixed])


def test_integers_of_an_rdd_that_no_float_can_hold_do_not_become_floats():
    def column(*values):
        (batch,) = feeders.record_batches([(value,) for value in values], ("x",))
        return batch.column(0).to_pylist()

    assert column(1, 2.5, 2**53) == [1.0, 2.5, 2.0**53]
    for lossy in [(0.5, 2**53 + 1), ([0.5, 1], [2, 2**60 + 1]), (-1, 2**63 + 1)]:
        with pytest.raises(SchemaError, match=r"the integer \d+ would become the float"):
            column(*lossy)


@pytest.fixture
def zone_of_this_process(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_times_of_an_rdd_are_instants_at_any_depth(zone_of_this_process):
    """Spark gives them to Python in the local time of the process, without a zone."""
    noon = datetime(2024, 7, 1, 12, 0, 0, 5)  # noqa: DTZ001
    instant = datetime(2024, 7, 1, 16, 0, 0, 5, UTC)
    after_the_change = datetime(2024, 11, 3, 1, 30, fold=1)  # noqa: DTZ001 (clocks were put back)
    from pyspark.sql import Row

    def column(*values):
        (batch,) = feeders.record_batches([(value,) for value in values], ("t",))
        return batch.column(0).to_pylist()

    assert column(None, noon, noon.astimezone(UTC)) == [None, instant, instant]
    assert column([noon], [None]) == [[instant], [None]]
    assert column(Row(at=[noon])) == [{"at": [instant]}]
    assert column({"at": noon}) == [{"at": instant}]
    assert column(after_the_change) == [datetime(2024, 11, 3, 6, 30, tzinfo=UTC)]


def test_a_timestamp_is_the_same_number_on_each_road(spark):
    """With three zones: the session's, the executors', and that of the data's texts."""

    def instants(ctx):
        return [int(t) for batch in ctx.stream(1, features="t") for t in np.asarray(batch)]

    zone = spark.conf.get("spark.sql.session.timeZone")
    environment = dict(spark.sparkContext.environment)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    spark.sparkContext.environment["TZ"] = "America/New_York"
    try:
        frame = spark.sql("SELECT timestamp'2024-07-01 12:00:00.000005 UTC' AS t").coalesce(1)
        distributor = TensorflowDistributor(1, "none", launcher=SparkLauncher(spark), **QUIET)
        with distributor.start(instants) as job:
            job.feed(frame)
            job.feed(frame.rdd)
            job.feed({"t": np.array(["2024-07-01T12:00:00.000005"], "datetime64[us]")})
            job.stop()
        found = job.result().value
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
        spark.sparkContext.environment.clear()
        spark.sparkContext.environment.update(environment)
    moment = datetime(2024, 7, 1, 12, 0, 0, 5, UTC)
    assert found == [int(moment.timestamp()) * 1_000_000 + 5] * 3


def test_who_asks_for_a_column_that_cant_be_fed_is_told_why(spark):
    def ask(ctx):
        for _ in ctx.stream(2, features=["x", "iv"]):
            pass

    launcher = SparkLauncher(spark)
    distributor = TensorflowDistributor(1, "none", launcher=launcher, logs="none", progress=False)
    frame = spark.range(6).selectExpr("double(id) AS x", "interval 1 day AS iv")
    with pytest.raises(DataError, match=r"'iv' of dataset 'stream' has the type interval day"):
        with distributor.start(ask) as job:
            job.feed(frame)
            job.stop()
            job.result(timeout=patience())


def test_epochs_that_the_function_doesnt_want_any_more_are_left_out(monkeypatch):
    job = local("none", 1).start(stop_soon)
    feed = job._launcher.feed

    def once(*given):
        taken = feed(*given)
        job.result(timeout=patience())  # the next epoch would come after the job's end
        return taken

    monkeypatch.setattr(job._launcher, "feed", once)
    with job:
        assert job.feed(numbers(100), epochs=3) >= 24


def slow(ctx):
    import time

    rows = 0
    for x in ctx.stream(1000, features="x"):
        rows += len(x)
        time.sleep(0.002)
    return rows


def test_more_rows_than_the_spool_holds_pass_through_it():
    with local("none", 2, spool=Spool(limit="1MiB")).start(slow) as job:
        assert job.feed({"x": np.zeros((200_000, 25), "float32")}) == 200_000
    assert sum(job.result().values) == 200_000


def test_what_cant_be_fed_is_said_at_the_call():
    with local("none", 1).start(loop) as job:
        with pytest.raises(InvalidArgument, match="epochs"):
            job.feed(numbers(5), epochs=0)
        with pytest.raises(SchemaError, match=r"no column 'z'"):
            job.feed(numbers(5), columns=["z"])
        with pytest.raises(InvalidArgument, match=r"list of names.*\['x'\]"):
            job.feed(numbers(5), columns="x")
        with pytest.raises(InvalidArgument, match="timeout"):
            job.feed(numbers(5), timeout="soon")
        with pytest.raises(InvalidArgument, match="Spark DataFrame"):
            job.infer(numbers(5))
        job.feed(numbers(5))
    with pytest.raises(InvalidArgument, match="has ended"):
        job.feed(numbers(5))


def test_rows_that_cant_be_fed_are_an_error_at_once_and_the_job_goes_on(spark):
    """Nobody waits for the job's own failure, of which a feeder's error may be the echo."""
    patient = {"launcher": SparkLauncher(spark), "deadlines": Deadlines(heartbeat=1000), **QUIET}
    with TensorflowDistributor(1, "none", **patient).start(loop) as job:
        assert job.feed(numbers(5)) == 5
        with pytest.raises(DataError, match="have no column names"):
            job.feed(spark.sparkContext.parallelize([(1.0, 2.0)], 1))
        with pytest.raises(
            DataError, match=r"^can't push rows: .*'y' was float before .* the same type\.$"
        ):
            job.feed(spark.range(3).selectExpr("array(1f, 2f) x", "string(id) y"))
    assert job.result().ledger.check() == []

    with (
        pytest.raises(
            DataError, match=r"^can't push rows: .*'y' was float before .* the same type\.$"
        ),
        local("none", 1, deadlines=Deadlines(heartbeat=1000)).start(loop) as job,
    ):
        job.feed(numbers(5))
        job.feed({**numbers(1), "y": np.array(["text"])})


def test_a_function_that_takes_no_rows_and_one_that_fails():
    def takes_none(ctx):
        import time

        while not ctx.should_stop:  # until the block below is left
            time.sleep(0.05)

    with local("none", 2).start(takes_none) as job:
        with pytest.raises(TimeoutError, match=r"worker:0, worker:1 did not call ctx.stream"):
            job.feed(numbers(5), timeout=0.5)

    def fails(ctx):
        for _ in ctx.stream(4, features="x"):
            raise ValueError("no")

    job = local("none", 1, spool=Spool(limit="1MiB")).start(fails)
    with pytest.raises(TrainingFailed, match="ValueError: no"):
        job.feed({"x": np.zeros((1_000_000, 10), "float32")})


def test_rows_of_the_same_stream_twice_or_too_late():
    def twice(ctx):
        ctx.stream(4, features="x")
        ctx.stream(4, features="x")

    with (
        pytest.raises(TrainingFailed, match="can be called only once"),
        local("none", 1).start(twice) as job,
    ):
        job.feed(numbers(5))

    def none(ctx):
        ctx.stream(4, features="x")

    with (
        pytest.raises(DataError, match="the stream ended before worker:0 got a row"),
        local("none", 1).start(none),
    ):
        pass
    with pytest.raises(DataError, match=r"Only jobs started with start\(\)"):
        local("none", 1).run(none)


def test_a_dataframe_and_an_rdd_are_pushed_while_feeders_fail(spark, tmp_path):
    """Tasks die in the middle of their partitions, and are tried again."""
    sent = spark.range(0, 3000, 1, 6).selectExpr("array(id * 1d, id + 0.5d) x", "id * 1d y")
    folder = str(tmp_path)

    def stumble(batches):
        import os
        from pathlib import Path

        from pyspark import TaskContext

        partition = TaskContext.get().partitionId()
        for number, batch in enumerate(batches):
            once = Path(folder) / f"{partition}"
            if number == 2 and partition % 2 == 0 and not once.exists():
                once.touch()
                if partition:
                    os._exit(1)
                raise RuntimeError("stumbled")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        launcher = SparkLauncher(spark)
        distributor = TensorflowDistributor(1, "none", launcher=launcher, **QUIET)
        with distributor.start(loop) as job:
            assert job.feed(sent.mapInArrow(stumble, sent.schema)) == 3000
            # Arrays of Python lists, as those of the DataFrame.
            rdd = spark.sparkContext.parallelize(
                [([float(n), 0.0], float(n)) for n in range(3000, 3100)], 2
            )
            assert job.feed(rdd, columns=["x", "y"]) == 100
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    ((_, rows, _),) = job.result().values
    assert sorted(rows) == [*range(3100)]
    assert len(list(tmp_path.iterdir())) == 3


def answer(ctx, wrong=False):
    """Answer each batch with twice its first column, and its name."""
    import numpy as np

    sizes = []
    for batch in ctx.stream(16, features=["x", "name"]):
        x = batch["x"].numpy()
        sizes.append(len(x))
        names = [name.decode() for name in batch["name"].numpy()]
        twice = np.stack([2 * x, x], axis=1)
        ctx.results({"twice": twice[:-1] if wrong else twice, "upper": [n.upper() for n in names]})
    return sizes


def test_a_dataframe_gets_a_row_of_answers_for_each_row(spark):
    asked = spark.range(0, 200, 1, 3).selectExpr(
        "id", "cast(id as float) x", "concat('n', id) name", "map(1, 2) kept"
    )
    distributor = TensorflowDistributor(1, "none", launcher=SparkLauncher(spark), **QUIET)
    with distributor.start(answer) as job:
        with pytest.raises(InvalidArgument, match="already has a column 'x'"):
            job.infer(asked, schema="x float")
        with pytest.raises(InvalidArgument, match="columns and types such as"):
            job.infer(asked, schema="floaty")
        answered = job.infer(asked, schema="twice array<double>, upper string")
        assert answered.columns == ["id", "x", "name", "kept", "twice", "upper"]
        rows = answered.collect()
        other = job.infer(asked.where("id < 5"), schema="upper string").collect()
        with pytest.raises(Exception, match="declares the column 'z'"):
            job.infer(asked, schema="z float").collect()
        with pytest.raises(Exception, match=r"partition \d, rows 0 to \d+: no answer within 0 sec"):
            job.infer(asked, timeout=0).collect()
    assert [row.id for row in rows] == [*range(200)]
    assert all(row.twice == [2.0 * row.id, row.id] for row in rows)
    assert all(row.upper == f"N{row.id}" and row.kept == {1: 2} for row in rows)
    assert [row.upper for row in other] == [f"N{n}" for n in range(5)]
    sizes = job.result().value
    assert job.result().ledger.check() == []
    assert [record.rows_fed for record in job.result().ledger.records] == [sum(sizes)]
    assert max(sizes) == 16
    assert sum(sizes) >= 205


def test_a_wrong_number_of_answers_and_too_few_slots(spark, capsys):
    asked = spark.range(0, 40, 1, 1).selectExpr("cast(id as float) x", "'n' name")
    one = TensorflowDistributor(1, "none", launcher=SparkLauncher(spark), **QUIET)
    with (
        pytest.raises(TrainingFailed, match="different lengths: twice: 15, upper: 16"),
        one.start(answer, wrong=True) as job,
    ):
        job.infer(asked, schema="upper string").collect()
    both = TensorflowDistributor(2, "none", launcher=SparkLauncher(spark), **QUIET)
    capsys.readouterr()
    job = both.start(answer)
    with pytest.raises(NotEnoughSlots, match="use all 2 task slots.*detached=True"), job:
        job.feed(asked)
    assert "to be fed later: the job's 2 tasks use all 2 task slots" in capsys.readouterr().out
