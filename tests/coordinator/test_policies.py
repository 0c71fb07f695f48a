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
from gridflow.coordinator.policies import MAX_PREEMPTIONS, policy_of, with_preemptions
from gridflow.wire.failures import TaskFailure


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
    policy = with_preemptions(MaxRestarts(1), 2)
    assert policy.restart(causes("preempted", "signal", "preempted"))
    assert not policy.restart(causes("preempted", "preempted", "preempted"))
    assert policy.restart(causes("preempted", "preempted", "lost"))
    assert not policy.restart(causes("signal", "preempted", "lost"))
    by_default = with_preemptions(MaxRestarts(0), None)
    assert by_default.restart(causes(*["preempted"] * MAX_PREEMPTIONS))
    assert not by_default.restart(causes(*["preempted"] * (MAX_PREEMPTIONS + 1)))
    aware = PreemptionAware(max_preemptions=2)
    assert with_preemptions(aware, None) is aware


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

    assert policy_of(None, 3) == MaxRestarts(3)
    assert policy_of(4, 0) == MaxRestarts(4)
    own = Twice()
    assert policy_of(own, 0) is own
    distributor = TensorflowDistributor(launcher=LocalLauncher(), restart=own)
    assert distributor.strategy == "none"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"restart": "often"}, "is a number of restarts"),
        ({"restart": True}, "is a number of restarts"),
        ({"restart": MaxRestarts}, "is a number of restarts"),
        ({"restart": -1}, "at least 0"),
        ({"restart": 1, "max_restarts": 1}, "either restart= or max_restarts="),
        ({"max_preemptions": -1}, "max_preemptions is a whole number of at least 0"),
        ({"max_preemptions": 1, "restart": PreemptionAware()}, "give max_preemptions= once"),
    ],
)
def test_what_is_no_policy_is_refused_at_the_call(given, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(launcher=LocalLauncher(), **given)


@pytest.mark.parametrize(
    "make",
    [lambda: MaxRestarts(-1), lambda: PreemptionAware(1.5), lambda: RetryableExits("2")],
)
def test_budgets_are_whole_numbers(make):
    with pytest.raises(errors.InvalidArgument, match="whole number"):
        make()
