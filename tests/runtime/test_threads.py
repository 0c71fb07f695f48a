"""Runs from other threads than the main one, and several at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from gridflow import SparkLauncher, TensorflowDistributor


def total(ctx):
    rows = ctx.dataset(batch_size=1, features="x", label="x").as_numpy_iterator()
    return float(sum(x.sum() for _, x in rows))


def test_two_jobs_at_once_on_one_launcher_get_their_own_rows(distribute, launcher):
    def rows(first):
        values = np.arange(first, first + 10, dtype="float32")
        if isinstance(launcher, SparkLauncher):
            return launcher._spark.createDataFrame([(float(x),) for x in values], "x float")
        return {"train": {"x": values}}

    distributor = distribute(1)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(distributor.run, total, data=rows(first)) for first in (0, 1000)]
        assert [job.result().value for job in jobs] == [45.0, 10045.0]


def test_a_thread_without_a_session_of_its_own_takes_that_of_the_data_or_the_default(spark):
    other = spark.newSession()

    def targets(data):
        assert type(spark).getActiveSession() is None
        return TensorflowDistributor(1).plan(print, data=data).target

    with ThreadPoolExecutor(1) as pool:
        for data in (None, other.range(3)):
            assert pool.submit(targets, data).result() == f"spark ({spark.sparkContext.master})"

    from gridflow._launch.spark.session import session_of

    assert session_of([np.ones(3), other.range(3)]) is other
