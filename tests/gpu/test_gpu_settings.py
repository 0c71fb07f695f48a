"""What Spark's settings say: GPUs of the application, and what ``gridflow.util`` tells of it."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from gridflow import SparkLauncher, errors
from gridflow._launch.spark.gpus import SparkGpuSettings, shortage
from gridflow._spec.gpus import GpuNeed
from gridflow.util import num_executors, num_param_servers, quiet

GPUS = {"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "1"}


def read(master="spark://host:7077", *, is_dynamic=False, **changed):
    """Read settings like those of an application with two GPUs on each executor."""
    settings = {"spark.master": master, **GPUS, **changed}
    return SparkGpuSettings.read(settings.get, is_dynamic=is_dynamic)


@pytest.mark.parametrize(
    ("gpus", "amount"), [(None, None), (1, None), (0, 0), (2, 2), (0.25, Fraction(1, 4))]
)
def test_a_stage_has_a_profile_only_where_it_differs(gpus, amount):
    assert read().stage_amount(GpuNeed.parse("gpus", gpus)) == amount


def test_local_masters_have_no_profiles_and_spark_hands_out_nothing():
    settings = read("local[4]")
    assert (settings.per_executor, settings.per_task) == (0, 0)
    assert settings.stage_amount(GpuNeed(2)) is None


@pytest.mark.parametrize(("amount", "shares"), [("1", 1), ("0.5", 2), ("0.1", 10), ("0.33", 3)])
def test_how_many_tasks_share_a_gpu_by_default(amount, shares):
    assert read(**{"spark.task.resource.gpu.amount": amount}).shares == shares


@pytest.mark.parametrize(
    ("needs", "executors", "numbers"),
    [
        ([GpuNeed(1)] * 4, 2, None),
        ([GpuNeed(1)] * 5, 2, (5, 4)),
        ([GpuNeed()] * 5, 2, (5, 4)),
        ([GpuNeed(0)] * 50, 1, None),
        ([GpuNeed(1, 4)] * 9, 1, (3, 2)),
        ([GpuNeed(1, 4)] * 8, 1, None),
        ([GpuNeed(2), GpuNeed(1), GpuNeed(1)], 2, None),
        ([GpuNeed(2)] * 3, None, None),
    ],
)
def test_numbers_are_compared(needs, executors, numbers):
    error = shortage(needs, read(), executors)
    assert (error and (error.required, error.available)) == numbers


def test_what_is_left_over_on_each_executor_helps_nobody():
    three = read(**{"spark.executor.resource.gpu.amount": "3"})
    assert shortage([GpuNeed(2)] * 2, three, 2) is None
    assert shortage([GpuNeed(2)] * 3, three, 2).available == 6


def session(**settings):
    """Return what the functions need of a session: its settings."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(conf=SimpleNamespace(get=named.get))


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"spark_master": "local[8]"}, 1),
        ({"spark_master": "local-cluster[3,2,1024]"}, 3),
        ({"spark_master": "yarn"}, 2),
        ({"spark_master": "yarn", "spark_executor_instances": "7"}, 7),
        (
            {
                "spark_master": "yarn",
                "spark_executor_instances": "7",
                "spark_dynamicAllocation_enabled": "true",
                "spark_dynamicAllocation_maxExecutors": "9",
            },
            9,
        ),
    ],
)
def test_the_number_of_executors(settings, number):
    assert num_executors(session(**settings)) == number


def test_without_an_upper_bound_there_is_no_number():
    with pytest.raises(errors.InvalidArgument, match="maxExecutors"):
        num_executors(session(spark_master="yarn", spark_dynamicAllocation_enabled="true"))


@pytest.mark.parametrize("what", [5, "local[2]", 0])
@pytest.mark.parametrize("function", [num_executors, num_param_servers, SparkLauncher])
def test_what_is_no_session_is_refused(function, what):
    with pytest.raises(errors.InvalidArgument, match="expected a SparkSession; got a"):
        function(what)


def test_only_a_builder_can_be_made_quiet():
    with pytest.raises(errors.InvalidArgument, match="SparkSession.builder.*got a SimpleNamespace"):
        quiet(session())


def test_the_number_of_parameter_servers():
    assert num_param_servers(session()) == 0
    assert num_param_servers(session(spark_gridflow_num_ps="3")) == 3
    with pytest.raises(errors.InvalidArgument, match="got 'three'"):
        num_param_servers(session(spark_gridflow_num_ps="three"))
