"""What Spark says when a job fails, and what is made of it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from gridflow import errors
from gridflow._agent.executor import Executor, executor_above
from gridflow._launch.spark import slots
from gridflow._launch.spark.errors import explain

CALLED = "An error occurred while calling o12811.save.\n: "
ABORTED = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 3.0 failed "
    "4 times, most recent failure: Lost task 1.3 in stage 3.0 (TID 12) (10.0.0.1 executor 1): "
)
BARRIER = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a "
    "failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task "
    "ResultTask(3, 1) finished unsuccessfully.\n"
)
STACK = (
    "\n\tat org.apache.spark.sql.errors.QueryExecutionErrors$.castingCauseOverflowError(Q.scala:9)"
    "\n\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n\nDriver stacktrace:\n\tat a.b()"
)
OVERFLOW = (
    "org.apache.spark.SparkArithmeticException: [CAST_OVERFLOW] The value 200L of the type "
    '"BIGINT" cannot be cast to "TINYINT" due to an overflow. SQLSTATE: 22003'
)
UDF = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    + "".join(f'  File "/pyspark/worker.py", line {n}, in main\n    process()\n' for n in range(5))
    + '  File "job.py", line 3, in <lambda>\n    f = udf(lambda x: 1 / x)\n'
    "ZeroDivisionError: division by zero\n"
)


@pytest.mark.parametrize("around", [CALLED + ABORTED, CALLED + BARRIER, ABORTED])
def test_the_error_itself_is_told_without_what_is_around_it(around):
    rank, detail, error = explain(Exception(around + OVERFLOW + STACK))
    assert (rank, detail) == (None, "")
    assert type(error) is errors.DataError
    assert str(error) == (
        "Spark failed to compute the rows of data=: [CAST_OVERFLOW] The value 200L of the type "
        '"BIGINT" cannot be cast to "TINYINT" due to an overflow. SQLSTATE: 22003'
    )


def test_of_a_traceback_the_last_frames_are_told():
    _, _, error = explain(Exception(CALLED + ABORTED + UDF + STACK))
    assert type(error) is errors.DataError
    assert 'File "job.py", line 3, in <lambda>' in str(error)
    assert str(error).endswith("ZeroDivisionError: division by zero")
    assert str(error).count("worker.py") < 5


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (BARRIER + "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", 1),
        (ABORTED.replace("1.3", "1.0") + "Python worker exited unexpectedly (crashed)", 1),
        (ABORTED + UDF.replace("job.py", "/x/gridflow/_agent/agent.py"), 1),
        (BARRIER + "FetchFailed(BlockManagerId(1, host, 1, None), shuffleId=0)", 1),
    ],
)
def test_what_was_lost_is_no_fault_of_the_data(text, kind):
    is_barrier = BARRIER in text
    rank, detail, error = explain(Exception(CALLED + text), is_barrier=is_barrier)
    assert type(error) is errors.TaskLost
    assert rank == kind
    assert detail


def test_sparks_exceptions_and_conditions_are_named_once_each():
    text = (
        "org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while "
        "reading file s3a://b/k. SQLSTATE: KD001\n\tat org.apache.spark.sql.Errors$.of(E.scala:1)\n"
        "Caused by: java.net.SocketTimeoutException: Read timed out\n"
        "Caused by: java.net.SocketTimeoutException: Read timed out [WARN]"
    )
    _, _, error = explain(Exception(CALLED + ABORTED + text), is_barrier=False, agents_ran=False)
    assert type(error) is errors.DataError
    assert error.spark_errors == (
        "org.apache.spark.SparkException",
        "FAILED_READ_FILE.NO_HINT",
        "java.net.SocketTimeoutException",
    )


def test_what_gridflow_itself_refuses_stays_what_it_is():
    refused = errors.InvalidArgument("repartition='never' supports only one dataset")
    assert explain(refused) == (None, "", refused)


@pytest.mark.parametrize(
    ("said", "kind", "way_out"),
    [
        (
            "[SPARK-24820][SPARK-24821]: Barrier execution mode does not allow the following …",
            errors.InvalidArgument,
            "Call df.repartition(3), or leave repartition= at 'auto'",
        ),
        (
            "[SPARK-24819]: … a barrier stage that requires more slots than the total number …",
            errors.NotEnoughSlots,
            "requires more slots than the total number",
        ),
        (
            "[SPARK-24942]: Barrier execution mode does not support dynamic resource allocation.",
            errors.InvalidArgument,
            "set spark.dynamicAllocation.enabled where the application starts",
        ),
    ],
)
@pytest.mark.parametrize("has_data", [True, False])
def test_why_spark_refuses_to_start_tasks_together_is_told_with_the_way_out(
    said, kind, way_out, has_data
):
    text = CALLED + "org.apache.spark.SparkException: " + said + STACK
    rank, detail, error = explain(Exception(text), 3, has_data=has_data)
    assert (rank, detail) == (None, "")
    assert type(error) is kind
    assert way_out in str(error)


def test_a_job_without_data_has_no_data_error():
    assert type(explain(Exception(ABORTED + OVERFLOW), has_data=False)[2]) is errors.TaskLost


def test_a_job_is_cancelled_by_gridflow_or_by_others():
    text = CALLED + (
        "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 7 cancelled as part of "
        "cancellation of all jobs SQLSTATE: XXKDA"
    )
    assert explain(Exception(text), was_cancelled=True) == (None, "", None)
    _, _, error = explain(Exception(text))
    assert type(error) is errors.DataError
    assert "but not by gridflow: [SPARK_JOB_CANCELLED] Job 7 cancelled as part" in str(error)


def test_what_a_user_says_of_cancelling_is_no_cancellation():
    said = UDF.replace("ZeroDivisionError: division by zero", "ValueError: Job 7 cancelled, sorry")
    _, _, error = explain(Exception(CALLED + ABORTED + said + STACK))
    assert "Spark failed to compute the rows" in str(error)
    assert str(error).endswith("ValueError: Job 7 cancelled, sorry")
    raised = "[USER_RAISED_EXCEPTION] the job was cancelled"
    _, _, error = explain(Exception(CALLED + ABORTED + "org.apache.E: " + raised + STACK))
    assert "Spark failed to compute the rows" in str(error)


@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize(
    "loss", ["ExecutorLostFailure (executor 1 exited: killed)", "Python worker exited unexpectedly"]
)
def test_a_task_before_the_agents_is_no_rank(barrier, loss):
    text = CALLED + ABORTED + loss + STACK
    rank, detail, error = explain(Exception(text), is_barrier=barrier, agents_ran=False)
    assert (rank, detail) == (None, "")
    assert type(error) is errors.DataError
    assert loss.split(" (")[0] in str(error)


def test_what_an_agent_refuses_is_the_jobs_error():
    refused = UDF.replace(
        "ZeroDivisionError: division", "gridflow.errors.InvalidArgument: repartition='never' needs"
    )
    _, _, error = explain(Exception(CALLED + BARRIER + refused + STACK))
    assert type(error) is errors.InvalidArgument
    assert str(error).startswith("repartition='never' needs")


@pytest.mark.parametrize(
    ("master", "limits", "most"),
    [
        ("spark://h:1", {"maxExecutors": "3", "executor.cores": "4"}, 12),
        ("spark://h:1", {"maxExecutors": "3", "executor.cores": "4", "task.cpus": "2"}, 6),
        ("spark://h:1", {"maxExecutors": "3", "executor.cores": "4", "task.cpus": "0.5"}, 24),
        ("spark://h:1", {"maxExecutors": "3", "executor.cores": "4", "task.cpus": "1.5"}, 6),
        ("spark://h:1", {"maxExecutors": "3", "cores.max": "5", "task.cpus": "0.5"}, 10),
        ("spark://h:1", {"maxExecutors": "3"}, None),  # each takes all cores of its host
        ("spark://h:1", {"maxExecutors": "3", "cores.max": "5"}, 5),
        ("spark://h:1", {"maxExecutors": "2", "executor.cores": "4", "cores.max": "9"}, 8),
        ("yarn", {"maxExecutors": "3", "cores.max": "1"}, 3),
        ("k8s://h", {"executor.cores": "2"}, None),
    ],
)
def test_how_far_dynamic_allocation_can_grow(master, limits, most):
    names = {"maxExecutors": "dynamicAllocation.maxExecutors"}
    settings = {"spark.master": master, "spark.dynamicAllocation.enabled": "true"}
    settings |= {f"spark.{names.get(name, name)}": value for name, value in limits.items()}

    def setting(name, default):
        return settings.get(name, default)

    assert slots.most_slots(setting) == most
    assert slots.is_dynamic(setting)
    if most is not None:
        said = slots.too_few(setting, most + 1, most)
        assert f"has {most + 1} tasks" in said
        assert f"more than {most} (" in said
        assert all(f"spark.{names.get(n, n)}={v}" in said for n, v in limits.items())
    settings["spark.master"] = "local[4]"
    assert not slots.is_dynamic(setting)


def test_the_executor_of_a_process_is_found_above_it():
    child = "import sys, time; print('up', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    words = [sys.executable, "-c", parent, "--executor-id", "7", "--cores", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as executor:
        try:
            assert executor.stdout.readline() == b"up\n"
            (worker,) = psutil.Process(executor.pid).children()
            assert executor_above(worker.pid) == Executor("7", executor.pid)
            assert executor_above(os.getpid()) is None
        finally:
            for each in psutil.Process(executor.pid).children():
                each.kill()
            executor.kill()


@pytest.mark.parametrize(
    ("settings", "promised"),
    [
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local-cluster[2,4,1024]", "spark.task.cpus": "2"}, 4),
        ({"spark.master": "local", "spark.task.cpus": "0.5"}, 2),
        ({"spark.master": "local-cluster[2,3,1024]", "spark.task.cpus": "1.5"}, 4),
        ({"spark.master": "local[*]"}, None),
        ({"spark.master": "spark://host:7077"}, None),
        ({"spark.master": "spark://host:7077", "spark.cores.max": "5", "spark.task.cpus": "2"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "3"}, 6),
        ({"spark.master": "k8s://host"}, 4),
    ],
)
def test_the_slots_that_settings_promise_to_a_client_who_cant_count_them(settings, promised):
    assert slots.promised_slots(settings.get, per_executor=2) == promised
