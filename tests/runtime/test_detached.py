"""Agents that give their slots back: others' tasks feed them, and they end with their executor."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

from gridflow import (
    Deadlines,
    InvalidArgument,
    LaunchOptions,
    LocalLauncher,
    SparkLauncher,
    TensorflowDistributor,
    errors,
)
from gridflow.testing.cluster import wait_for_slots
from suite.waiting import patience, wait_for

pytestmark = [
    pytest.mark.slow,
    #: pyspark leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

QUIET = {"logs": "none", "progress": False}


def detached(spark, **options):
    launcher = SparkLauncher(spark)
    return TensorflowDistributor(
        2,
        "none",
        launcher=launcher,
        launch_options=LaunchOptions(detached=True),
        **QUIET,
        **options,
    )


def count(ctx):
    """Return the rows that came to this rank, and the process that read them."""
    import os

    rows = []
    for x in ctx.stream(8, features="x"):
        rows += [int(number) for number in np.asarray(x)]
    return rows, os.getpid()


def answer(ctx):
    for x in ctx.stream(8, features="x"):
        ctx.results(2 * x)


def test_a_job_on_all_slots_is_fed_and_asked_by_tasks_in_its_slots(spark):
    rows = spark.range(0, 100, 1, 4).selectExpr("cast(id as int) x")
    with detached(spark).start(count) as job:
        assert job.feed(rows, epochs=2) == 200
    result = job.result()
    assert sorted(row for rows, _ in result.values for row in rows) == sorted([*range(100)] * 2)
    assert all(rows for rows, _ in result.values)
    assert result.ledger.check() == []
    with detached(spark).start(answer) as job:
        answered = job.infer(rows, schema="prediction int").collect()
    assert [(row.x, row.prediction) for row in answered] == [(n, 2 * n) for n in range(100)]
    wait_for_slots(spark, 2)


def test_agents_end_with_their_executor_and_are_missed(spark, tmp_path):
    folder = str(tmp_path)

    def train(ctx):
        import os
        from pathlib import Path

        Path(folder, str(os.getpid())).touch()
        return sum(len(x) for x in ctx.stream(8, features="x"))

    def executor(_):
        (above,) = [p.pid for p in psutil.Process().parents() if "java" in p.name()][:1]
        return above

    job = detached(spark).start(train)
    assert job.feed({"x": np.arange(20)}) == 20  # all ranks are there
    tasks = spark.sparkContext.parallelize(range(2), 2)  # in the slots that were given back
    victim = min(tasks.map(executor).collect())
    os.kill(victim, 9)
    with pytest.raises(errors.TaskLost, match="executor") as caught:
        job.result(timeout=patience())
    assert caught.value.first.task in {"worker:0", "worker:1"}
    pids = [int(name) for name in os.listdir(folder)]
    assert len(pids) == 2
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), "the end of its processes")
    wait_for_slots(spark, 2)  # Spark replaces it


def test_a_job_that_is_cancelled_before_its_agents_are_there_ends_at_once(spark):
    job = detached(spark, deadlines=Deadlines(shutdown=1000)).start(count)
    job.cancel()
    with pytest.raises(errors.JobCancelled):
        job.result(timeout=patience())
    wait_for_slots(spark, 2)


def test_what_detached_agents_cant_have_is_refused_at_the_call(spark, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"LocalLauncher has none"):
        TensorflowDistributor(
            1, launcher=LocalLauncher(), launch_options=LaunchOptions(detached=True)
        ).start(count)
    with pytest.raises(InvalidArgument, match=r"can't be used with data="):
        detached(spark).run(count, data=spark.range(4))
    with pytest.raises(InvalidArgument, match="can't be used with GPUs"):
        detached(spark, gpus=1).start(count)
    monkeypatch.setattr(SparkLauncher, "_is_dynamic", lambda _: True)
    with pytest.raises(InvalidArgument, match=r"dynamicAllocation"):
        detached(spark).plan(count)
