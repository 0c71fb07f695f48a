"""Roles: what is refused, what each task does, and what plan() says of it."""

from __future__ import annotations

import pickle

import pytest

from gridflow import (
    Distribution,
    FixedShardsPartitioner,
    LocalLauncher,
    MinSizePartitioner,
    Programs,
    Role,
    TensorflowDistributor,
    errors,
)
from gridflow._spec.cluster import Task
from gridflow._spec.job import make_tasks, parts_of


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("wroker",), "unknown role 'wroker'.* Did you mean 'worker'"),
        ((3,), "unknown role 3"),
        (("worker", 0), "at least 1; got 0"),
        (("worker", 1.5), "got 1.5"),
        (("worker", True), "got True"),
        (("chief", 2), "only one chief; got 2"),
        (("evaluator", 2), "only one evaluator; got 2"),
    ],
)
def test_a_role_that_cant_be_is_refused_when_it_is_made(arguments, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        Role(*arguments)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"roles": [Role("ps", 2)]}, "no role trains"),
        ({"roles": [Role("ps"), Role("chief")]}, "needs at least one worker"),
        ({"roles": [Role("evaluator")]}, "no role trains"),
        ({"roles": []}, "no role trains"),
        ({"roles": [Role("worker"), Role("worker")]}, "duplicate role"),
        ({"roles": ["worker"]}, "list of Role"),
        ({"roles": Role("worker")}, "list of Role"),
        ({"roles": [Role("worker")], "num_workers": 2}, "either num_workers= or roles="),
        (
            {"roles": [Role("worker"), Role("ps")], "strategy": "none"},
            "doesn't support parameter serve",
        ),
        ({"num_workers": 2, "strategy": "parameter_server"}, "needs at least one ps"),
        ({"roles": [Role("chief"), Role("worker")], "strategy": "mirrored"}, "got 2 workers"),
        ({"num_workers": 1, "strategy": "parameter_serve"}, "Did you mean 'parameter_server'"),
        (
            {
                "num_workers": 1,
                "distribution": Distribution(variable_partitioner=MinSizePartitioner()),
            },
            "has none",
        ),
        ({"num_workers": 1, "programs": Programs(classic_flags=True)}, "needs strategy='server'"),
    ],
)
def test_roles_that_make_no_job_are_refused_at_the_call(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(**options, launcher=LocalLauncher())


@pytest.mark.parametrize(
    ("kind", "numbers"), [(MinSizePartitioner, (0,)), (FixedShardsPartitioner, (0,))]
)
def test_a_partitioner_without_a_shard_is_refused(kind, numbers):
    with pytest.raises(errors.InvalidArgument, match="at least 1; got 0"):
        kind(*numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        (MinSizePartitioner(4), [3, 1]),
        (MinSizePartitioner(4, max_shards=2), [2, 1]),
        (MinSizePartitioner(), [1, 1]),
        (FixedShardsPartitioner(5), [5, 1]),
    ],
)
def test_partitioners_are_tensorflows(kind, parts):
    import tensorflow as tf

    assert kind.to_tensorflow(3)(tf.TensorShape([100, 2]), tf.float32) == parts


def test_roles_survive_pickling():
    assert pickle.loads(pickle.dumps(Role("ps", 2))) == Role("ps", 2)


@pytest.mark.parametrize(
    ("roles", "strategy"),
    [
        ([Role("worker")], "none"),
        ([Role("worker"), Role("evaluator")], "none"),
        ([Role("worker", 2)], "multi_worker_mirrored"),
        ([Role("worker"), Role("chief")], "multi_worker_mirrored"),
        ([Role("worker", 2), Role("ps")], "parameter_server"),
    ],
)
def test_the_roles_decide_the_strategy_where_none_is_named(roles, strategy):
    assert TensorflowDistributor(roles=roles, launcher=LocalLauncher()).strategy == strategy


def test_those_that_train_come_first_and_a_chief_is_added_for_parameter_servers():
    roles = [Role("evaluator"), Role("ps", 2), Role("worker", 2)]
    names = [str(task) for task in make_tasks(roles, "parameter_server")]
    assert names == ["chief:0", "worker:0", "worker:1", "ps:0", "ps:1", "evaluator:0"]
    names = [str(task) for task in make_tasks(roles, "server")]
    assert names == ["worker:0", "worker:1", "ps:0", "ps:1", "evaluator:0"]


def test_under_parameter_servers_the_chief_is_awaited_and_the_workers_are_fed():
    tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0), Task("evaluator", 0)]
    chief, worker, ps, evaluator = parts_of(tasks, "parameter_server")
    assert chief.is_awaited
    assert [part.runs_function for part in (worker, ps)] == [False, False]
    assert [part.serves for part in (chief, worker, ps, evaluator)] == [False, True, True, False]
    assert [part.is_fed for part in (chief, worker, ps, evaluator)] == [False, True, False, False]
    assert [p.is_replaced for p in (chief, worker, ps, evaluator)] == [False, True, False, True]


def test_the_plan_lists_all_tasks():
    roles = [Role("ps", 2), Role("worker", 2), Role("evaluator")]
    distributor = TensorflowDistributor(
        roles=roles, strategy="parameter_server", launcher=LocalLauncher()
    )
    plan = distributor.plan(lambda: None)
    assert "chief:0, worker:0, worker:1, ps:0, ps:1, evaluator:0" in str(plan)
    assert distributor.num_workers == 3


def test_too_few_slots_count_tasks_of_all_roles(spark):
    from gridflow import SparkLauncher

    roles = [Role("ps"), Role("worker"), Role("evaluator")]
    distributor = TensorflowDistributor(
        roles=roles, strategy="server", launcher=SparkLauncher(spark)
    )
    with pytest.raises(errors.NotEnoughSlots, match="3 tasks") as caught:
        distributor.run(lambda: None)
    assert (caught.value.required, caught.value.available) == (3, 2)
