"""What Spark fails with, or is busy with: said in its words, at once, and not tried again."""

from __future__ import annotations

import os
import shutil
import threading
import time

import psutil
import pytest

from gridflow import (
    Deadlines,
    MaxRestarts,
    Restarts,
    SparkLauncher,
    TensorflowDistributor,
    errors,
)
from gridflow.testing.cluster import wait_for_slots
from suite.waiting import wait_for


@pytest.fixture
def quiet(spark):
    """Make a distributor that would start again."""

    def make(num_workers=2, **options):
        options = {"logs": "none", "progress": False, "max_restarts": 2, **options}
        return TensorflowDistributor(num_workers, "none", launcher=SparkLauncher(spark), **options)

    return make


def fails_with(distributor, frame):
    with pytest.raises(errors.DataError) as caught:
        distributor.run(print, data=frame)
    assert type(caught.value) is errors.DataError
    assert "An error occurred while calling" not in str(caught.value)
    assert caught.value.__cause__ is not None
    return str(caught.value)


def test_a_failure_of_the_data_is_a_data_error_in_sparks_words(spark, quiet, tmp_path):
    from pyspark.sql import functions as F

    distributor = quiet(
        deadlines=Deadlines(heartbeat=5)
    )  # so long an agent looks for a job that is over
    fails = F.udf(lambda number: 1 / (number - 3), "double")
    after_a_shuffle = spark.range(10).withColumn("y", fails("id"))
    assert "ZeroDivisionError: division by zero" in fails_with(distributor, after_a_shuffle)
    in_the_agents_stage = spark.range(0, 10, 1, 2).withColumn("y", fails("id"))
    assert "ZeroDivisionError: division by zero" in fails_with(distributor, in_the_agents_stage)
    overflow = spark.range(10).selectExpr("cast(id * 100 AS tinyint) AS x")
    assert "[CAST_OVERFLOW]" in fails_with(distributor, overflow)
    path = str(tmp_path / "rows")
    spark.range(10).write.parquet(path)
    missing = spark.read.parquet(path)
    shutil.rmtree(path)
    assert "FILE_NOT_EXIST" in fails_with(distributor, missing)
    with pytest.raises(errors.InvalidArgument, match="foreachBatch"):
        distributor.run(print, data=spark.readStream.format("rate").load())


def test_rows_are_computed_again_after_an_error_that_the_policy_names(spark, quiet, tmp_path):
    from pyspark.sql import functions as F

    broken = tmp_path / "broken"
    broken.touch()

    class Mends:
        def restart(self, causes):
            broken.unlink()
            return MaxRestarts(1, errors=["PythonException"]).restart(causes)

    # First, as functions take the Python that it sets.
    distributor = quiet(max_restarts=0, restarts=Restarts(policy=Mends()))

    @F.udf("double")
    def may_fail(number):
        if broken.exists():
            raise ConnectionError("the service is busy")
        return float(number)

    frame = spark.range(10).withColumn("y", may_fail("id"))
    result = distributor.run(print, data=frame)
    assert sum(counts.rows_in for counts in result.ledger.counts.values()) == 10
    failures = [attempt.failure for attempt in result.attempts]
    assert [each and (each.task, each.kind) for each in failures] == [("Spark", "data"), None]
    assert "org.apache.spark.api.python.PythonException" in failures[0].spark_errors


def test_rows_in_too_few_or_too_many_partitions_are_refused_at_once(spark):
    with pytest.raises(errors.InvalidArgument, match="Did you mean 'always'"):
        SparkLauncher(spark, repartition="alway")
    options = {"logs": "none", "progress": False, "max_restarts": 2}
    as_they_lie = SparkLauncher(spark, repartition="never")
    distributor = TensorflowDistributor(2, "none", launcher=as_they_lie, **options)
    with pytest.raises(errors.InvalidArgument, match="has 1, and the job has 2 such tasks"):
        distributor.run(print, data=spark.range(9).repartition(1))
    # Gridflow learns it from the first task.
    rows = spark.sparkContext.parallelize([(1,), (2,)], 1)
    with pytest.raises(errors.InvalidArgument, match="has 1, and the job has 2 such tasks"):
        distributor.run(print, data=spark.createDataFrame(rows, "id int"))


def test_partitions_that_spark_cant_run_together_are_refused_with_the_way_out(spark):
    as_they_lie = SparkLauncher(spark, repartition="never")
    distributor = TensorflowDistributor(2, "none", launcher=as_they_lie, max_restarts=2)
    with pytest.raises(errors.InvalidArgument, match=r"Call df.repartition\(2\)"):
        distributor.plan(print, data=spark.range(0, 9, 1, 4).coalesce(2))
    # Only Spark knows this one.
    one = spark.createDataFrame(spark.sparkContext.parallelize([(1,)], 1), "id int")
    with pytest.raises(errors.InvalidArgument, match=r"Call df.repartition\(2\)"):
        distributor.run(print, data=one.union(one))


def test_a_task_before_the_agents_that_dies_is_no_lost_rank(spark, quiet):
    from pyspark.sql import functions as F

    @F.udf("long")
    def dies(number):
        os._exit(3)

    frame = spark.range(0, 8, 1, 4).withColumn("y", dies("id"))
    words = fails_with(quiet(), frame)
    assert "Spark failed to compute the rows of data=" in words
    assert "Python worker exited unexpectedly" in words


def test_a_job_that_somebody_cancels_ends_with_all_its_processes(spark, quiet, tmp_path):
    def train(ctx, folder):
        import os
        from pathlib import Path

        Path(folder, str(os.getpid())).touch()
        time.sleep(60)

    def cancel():
        try:
            wait_for(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks")
        finally:
            spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(errors.DataError, match="cancelled, but not by gridflow"):
        quiet().run(train, str(tmp_path), data=spark.range(10))
    assert [path.name for path in tmp_path.iterdir() if psutil.pid_exists(int(path.name))] == []
    thread.join()


def test_slots_that_are_taken_are_named_with_what_takes_them(spark, quiet, capsys):
    def sleep(batches):

        time.sleep(60)
        yield from batches

    def occupy():
        spark.sparkContext.addJobTag("occupied")
        with pytest.raises(Exception, match="cancelled"):
            spark.range(0, 2, 1, 2).mapInArrow(sleep, "id long").collect()

    def at_work():
        tracker = spark.sparkContext.statusTracker()
        stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
        return sum(stage.numActiveTasks for stage in stages if stage)

    quiet()  # from now on Spark's Python is this one
    wait_for_slots(spark, 2)
    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        wait_for(lambda: at_work() == 2, "a task in each slot", seen=at_work)
        words = r"2 task slots.*in use: stage \d+ .* runs 2 of"
        with pytest.raises(errors.StartTimeout, match=words):
            quiet(start_timeout=8).run(print)
    finally:
        spark.sparkContext.cancelJobsWithTag("occupied")
        thread.join()
    assert "waiting: Spark has 2 task slots" in "".join(capsys.readouterr())
