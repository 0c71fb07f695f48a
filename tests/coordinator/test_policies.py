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
