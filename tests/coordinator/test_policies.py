"""Which failures are followed by another generation."""

from __future__ import annotations

import pytest

from gridflow import (
    LocalLauncher,
    MaxRestarts,
    PreemptionAware,
    RetryableExits,
    TensorflowDistributor,
    errors,
)
from gridflow._coordinator.policies import MAX_PREEMPTIONS, Restarts
from gridflow._wire.failures import TaskFailure


def causes(*kinds):
    return [TaskFailure("worker:0", "host", kind, "it failed") for kind in kinds]


def test_losses_and_failures_have_budgets_of_their_own():
    policy = PreemptionAware(max_preemptions=2, max_restarts=1)
    assert policy.restart(causes("lost", "lost"))
    assert not policy.restart(causes("lost", "lost", "lost"))
    assert policy.restart(causes("lost", "exception", "lost"))
    assert not policy.restart(causes("exception", "lost", "signal"))
    assert not policy.restart(causes("data"))
    assert policy.restart(causes("lost", "preempted"))
    assert not policy.restart(causes("lost", "preempted", "lost"))


def test_rows_are_computed_again_where_spark_says_that_this_may_help():
    def failed(*errors):
        return [TaskFailure("Spark", "", "data", "it failed", spark_errors=errors)]

    fetch = "org.apache.spark.shuffle.FetchFailedException"
    timeout, read = "java.net.SocketTimeoutException", "FAILED_READ_FILE.NO_HINT"
    for policy in (MaxRestarts(1), PreemptionAware(max_restarts=1)):
        assert policy.restart(failed("org.apache.spark.SparkException", fetch))
        assert not policy.restart(failed(timeout, read))
        assert not policy.restart(failed())
    for named in ([timeout], ("SocketTimeoutException",), [read], ["FAILED_READ_FILE"]):
        assert MaxRestarts(1, errors=named).restart(failed(timeout, read))
        assert not MaxRestarts(0, errors=named).restart(failed(timeout, read))
    for named in (["java"], ["Exception"], ["READ_FILE"]):
        assert not MaxRestarts(1, errors=named).restart(failed(timeout, read))


@pytest.mark.parametrize("given", ["FAILED_READ_FILE", [""], [3]])
def test_errors_are_names(given):
    with pytest.raises(errors.InvalidArgument, match="takes names of Spark's exceptions"):
        MaxRestarts(1, errors=given)


def test_what_is_taken_back_with_notice_has_a_budget_beside_any_policy():
    policy = Restarts(policy=MaxRestarts(1), max_preemptions=2).policy_with(0)
    assert policy.restart(causes("preempted", "signal", "preempted"))
    assert not policy.restart(causes("preempted", "preempted", "preempted"))
    assert policy.restart(causes("preempted", "preempted", "lost"))
    assert not policy.restart(causes("signal", "preempted", "lost"))
    by_default = Restarts().policy_with(0)
    assert by_default.restart(causes(*["preempted"] * MAX_PREEMPTIONS))
    assert not by_default.restart(causes(*["preempted"] * (MAX_PREEMPTIONS + 1)))
    aware = PreemptionAware(max_preemptions=2)
    assert Restarts(policy=aware).policy_with(0) is aware


def test_a_retryable_exit_is_one_of_128_and_above_or_none_of_the_programs_own():
    policy = RetryableExits(2)

    def restarts(kind, code=None, before=(), *, echo=False):
        last = TaskFailure("worker:0", "host", kind, "it failed", exit_code=code, consequence=echo)
        return policy.restart([*before, last])

    assert restarts("exit", 143)
    assert restarts("signal")
    assert restarts("lost")
    assert not restarts("exit", 3)
    assert not restarts("exception")
    assert restarts("exit", 1, echo=True)
    assert restarts("exception", echo=True)
    assert not restarts("data", echo=True)
    assert not restarts("data")
    assert restarts("signal", before=causes("signal"))
    assert not restarts("signal", before=causes("signal", "lost"))


def test_a_number_and_an_object_are_both_policies():
    class Twice:
        def restart(self, causes):
            return len(causes) <= 2

    assert Restarts().policy_with(3).policy == MaxRestarts(3)
    own = Twice()
    assert Restarts(policy=own).policy_with(0).policy is own
    restarts = Restarts(policy=own)
    distributor = TensorflowDistributor(launcher=LocalLauncher(), restarts=restarts)
    assert distributor.strategy == "none"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policy": "often"}, r"must be MaxRestarts\(3\), .* got 'often'"),
        ({"policy": True}, r"must be MaxRestarts\(3\), .* got True"),
        ({"policy": MaxRestarts}, r"must be MaxRestarts\(3\), .*"),
        ({"max_restarts": -1}, "at least 0"),
        ({"policy": MaxRestarts(1), "max_restarts": 1}, r"either Restarts\(policy=\) or max_res"),
        ({"max_preemptions": -1}, r"\(max_preemptions=\) must be a whole number of at least 0"),
        ({"max_preemptions": 1, "policy": PreemptionAware()}, "give max_preemptions= only once"),
    ],
)
def test_what_is_no_policy_is_refused_at_the_call(given, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        limit = given.pop("max_restarts", 0)
        restarts = Restarts(**given)
        TensorflowDistributor(launcher=LocalLauncher(), max_restarts=limit, restarts=restarts)


@pytest.mark.parametrize(
    "make",
    [lambda: MaxRestarts(-1), lambda: PreemptionAware(1.5), lambda: RetryableExits("2")],
)
def test_budgets_are_whole_numbers(make):
    with pytest.raises(errors.InvalidArgument, match="whole number"):
        make()
