"""The main job from a client of Spark Connect: no SparkContext, no RDDs, no Java beside it."""

from __future__ import annotations

import re

import pytest
from documents import python_blocks

pytestmark = pytest.mark.slow


def what_was_trained(spark):
    distributor = TensorflowDistributor(2)  # noqa: F821 (of the page's program)
    planned = str(distributor.plan(train, data=rows))  # noqa: F821
    predicted = rows.select(result.model.predict_udf()("x").alias("p"), "y")  # noqa: F821
    return {
        "session": type(spark).__module__,
        "plan": planned,
        "loss": result.history["loss"],  # noqa: F821
        "predicted": [tuple(row) for row in predicted.take(10)],
        "rows": sum(each.rows_in for each in result.ledger.counts.values()),  # noqa: F821
        "wrong": result.ledger.check(),  # noqa: F821
    }


def test_the_pages_program_trains_on_rows_and_predicts_on_them(client, server):
    (program,) = python_blocks("docs/connect.md")
    assert "sc://10.0.0.1:15002" in program
    client(program.replace("sc://10.0.0.1:15002", server))
    done = client(what_was_trained)
    assert done["session"] == "pyspark.sql.connect.session"
    assert re.search(r"^slots +3$", done["plan"], re.MULTILINE)
    assert re.search(r"^target +spark \(local\[3\]\)$", done["plan"], re.MULTILINE)
    assert "the coordinator runs in this client" in done["plan"]
    assert len(done["loss"]) == 5
    assert done["loss"][-1] < done["loss"][0]
    assert all(abs(p - y) < 0.5 for p, y in done["predicted"])
    assert (done["rows"], done["wrong"]) == (4000, [])


def fail_and_be_killed(spark):
    import contextlib
    import io

    import pandas as pd

    from gridflow import TensorflowDistributor, TrainingFailed
    from gridflow.testing.deaths import kill_task

    def fail(ctx):
        import time

        print(f"rank {ctx.rank} of {ctx.num_workers}", flush=True)
        if ctx.rank == 1:
            raise ValueError("learning rate is -1")
        time.sleep(60)

    def be_killed(ctx):
        import keras

        class Kill(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if ctx.generation == 0 and ctx.rank == 0 and epoch == 1:
                    kill_task(ctx, "worker:1")

        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        columns = {"batch_size": 8, "features": [["x"]], "label": "y"}
        rows, others = (ctx.dataset(name, **columns) for name in ("train", "validation"))
        calls = [*ctx.callbacks(), Kill()]
        model.fit(rows, validation_data=others, epochs=4, verbose=0, callbacks=calls)
        return ctx.generation, int(model.optimizer.iterations.numpy())

    options = {"logs": "none", "progress": False}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            TensorflowDistributor(2, "none", progress=False).run(fail)
    except TrainingFailed as error:
        first = error.first
        failed = first.task, first.kind, first.summary, first.traceback, printed.getvalue()
    data = {
        "train": spark.range(160).selectExpr("id / 160 AS x", "id / 80 AS y"),
        "validation": pd.DataFrame({"x": [0.0, 0.5, 1.0], "y": [1.0, 2.0, 3.0]}),
    }
    result = TensorflowDistributor(2, max_restarts=1, **options).run(be_killed, data=data)
    attempts = [each.failure.task if each.failure else None for each in result.attempts]
    return failed, list(result.values), attempts, len(result.history["val_loss"])


def test_a_failure_is_named_and_a_killed_process_is_followed_by_another_generation(client):
    (task, kind, summary, trace, printed), values, attempts, epochs = client(fail_and_be_killed)
    assert (task, kind) == ("worker:1", "exception")
    assert summary == "the function raised ValueError: learning rate is -1"
    assert ", in fail\nValueError" in trace
    for rank in (0, 1):
        assert f"[worker:{rank}] rank {rank} of 2" in printed
    (generation, steps), other = values
    assert (generation, steps) == other
    assert generation == 1
    assert steps >= 40  # 160 rows, in batches of 8 on each of two ranks, for four epochs
    assert attempts == ["worker:1", None]
    assert epochs == 4


def push_ask_and_cancel(spark):
    from gridflow import InvalidArgument, JobCancelled, NotEnoughSlots, TensorflowDistributor

    def answer(ctx):
        total = 0.0
        for x in ctx.stream(4, features="x"):
            total += float(sum(x.numpy()))
            ctx.results({"twice": 2 * x})
        return total

    def add(ctx):
        return sum(float(sum(x.numpy())) for x in ctx.stream(4, features="x"))

    options = {"logs": "none", "progress": False}
    rows = spark.range(0, 20, 1, 1).selectExpr("float(id) AS x")
    stream = spark.readStream.format("rate").load()
    with TensorflowDistributor(1, **options).start(answer) as job:
        try:
            job.feed(stream, checkpoint_location="/nowhere")
        except InvalidArgument as error:
            refused = str(error)
        answers = job.infer(rows, schema="twice float").orderBy("x").collect()
    with TensorflowDistributor(1, **options).start(add) as job:
        taken = job.feed(rows)
    fed = taken, job.result().value

    job = TensorflowDistributor(3, "none", **options).start(add)
    try:
        job.feed(rows, timeout=240)
    except NotEnoughSlots as error:
        full = str(error)
    job.cancel()
    try:
        job.result(60)
    except JobCancelled as error:
        cancelled = str(error)
    free = spark.range(3).repartition(3).count()  # with all slots taken it would wait
    return refused, [tuple(row) for row in answers], fed, full, cancelled, free


def test_rows_are_pushed_and_asked_about_streams_refused_and_a_job_cancelled(client):
    refused, answers, fed, full, cancelled, free = client(push_ask_and_cancel)
    assert "can't be fed over Spark Connect" in refused
    assert answers == [(float(i), 2.0 * i) for i in range(20)]
    assert fed == (20, sum(range(20)))
    assert "the job's 3 tasks use all 3 task slots" in full
    assert "was cancelled" in cancelled
    assert free == 3


def train_out_of_reach(spark):
    import contextlib
    import io
    import time

    from gridflow import DataError, JobCancelled, Network, TensorflowDistributor, TrainingFailed
    from gridflow.testing.deaths import kill_task

    def await_rows(ctx):
        return sum(len(x) for x in ctx.stream(8, features="x"))

    def train(ctx):
        import keras

        class Kill(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if ctx.generation == 0 and ctx.rank == 0 and epoch == 1:
                    kill_task(ctx, "worker:1")

        print(f"rank {ctx.rank} in generation {ctx.generation}", flush=True)
        with ctx.strategy.scope():
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        rows = ctx.dataset(batch_size=8, features=[["x"]], label="y")
        model.fit(rows, epochs=3, verbose=0, callbacks=[*ctx.callbacks(), Kill()])
        return model

    def fail(ctx):
        import time

        if ctx.rank == 1:
            raise ValueError("learning rate is -1")
        time.sleep(60)

    def sleep(ctx):
        import time

        time.sleep(600)

    # An address that is set aside for documents: nobody has it.
    options = {"network": Network(advertise="192.0.2.1"), "progress": False}
    rows = spark.range(160).selectExpr("id / 160 AS x", "id / 80 AS y")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = TensorflowDistributor(2, max_restarts=1, **options).run(train, data=rows)
    predicted = rows.select(result.model.predict_udf()("x").alias("p")).count()
    attempts = [each.failure.task if each.failure else None for each in result.attempts]
    counts = sum(each.rows_in for each in result.ledger.counts.values())
    trained = len(result.history["loss"]), attempts, counts, result.ledger.check(), predicted
    try:
        TensorflowDistributor(2, "none", logs="none", **options).run(fail)
    except TrainingFailed as error:
        failed = error.first.task, error.first.summary, ", in fail\n" in error.first.traceback
    try:
        TensorflowDistributor(2, "none", logs="none", **options).run(await_rows)
    except DataError as error:
        failed = *failed, "Only jobs started with start() can be fed" in str(error)
    job = TensorflowDistributor(3, "none", logs="none", **options).start(sleep)
    time.sleep(4)
    job.cancel()
    try:
        job.result(60)
    except JobCancelled:
        cancelled = True
    return printed.getvalue(), trained, failed, cancelled, spark.range(3).repartition(3).count()


def test_where_nobody_reaches_the_client_the_coordinator_runs_beside_the_agents(client):
    printed, trained, failed, cancelled, free = client(train_out_of_reach)
    assert "the coordinator runs in the task of worker:0" in printed
    for line in ("[worker:1] rank 1 in generation 0", "[worker:0] rank 0 in generation 1"):
        assert line in printed
    assert trained == (3, ["worker:1", None], 160, [], 160)
    assert failed == ("worker:1", "the function raised ValueError: learning rate is -1", True, True)
    assert cancelled
    assert free == 3


def be_refused(spark):
    import tempfile

    from gridflow import (
        Network,
        NetworkError,
        NotEnoughSlots,
        Role,
        TensorflowDistributor,
        exit_code,
    )

    options = {"network": Network(advertise="192.0.2.1"), "logs": "none", "progress": False}
    roles = [Role("chief"), Role("ps", 1), Role("worker", 1)]
    unreachable = []
    with tempfile.TemporaryDirectory() as folder:
        for other, data in (
            ({"num_workers": 2, "checkpoint_dir": folder}, None),
            ({"roles": roles}, spark.range(10)),
        ):
            try:
                TensorflowDistributor(**other, **options).run(lambda: 1, data=data)
            except NetworkError as error:
                unreachable.append((str(error), exit_code(error)))
    try:
        TensorflowDistributor(4, "none", **options).plan(lambda: 1)
    except NotEnoughSlots as error:
        few = error.required, error.available
    return unreachable, few


def test_a_client_out_of_reach_and_too_few_slots_are_told_where_nothing_else_would_do(client):
    unreachable, few = client(be_refused)
    for said, code in unreachable:
        assert re.search(r"can't connect to it at 192\.0\.2\.1:\d+ \(\S+: ", said)
        assert "Set Network(advertise=" in said
        assert code == 71
    assert "checkpoint_dir= is a folder of this machine" in unreachable[0][0]
    assert re.search(r"its tasks form \d Spark jobs: those that are fed", unreachable[1][0])
    assert few == (4, 3)
