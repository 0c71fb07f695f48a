"""What can be asked for, and what is said of it before anything is launched."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest

from gridflow import (
    CommunicationOptions,
    Distribution,
    LocalLauncher,
    Role,
    TensorflowDistributor,
    errors,
)
from gridflow._spec.gpus import GpuNeed, GpuOptions, group


@pytest.mark.parametrize(
    ("gpus", "count", "shares"),
    [
        (None, None, 1),
        (0, 0, 1),
        (2, 2, 1),
        (1.0, 1, 1),
        (0.5, 1, 2),
        (0.33, 1, 3),
        (1 / 3, 1, 3),
        (0.17, 1, 6),
        (0.1, 1, 10),
        (Fraction(1, 7), 1, 7),
    ],
)
def test_gpus_are_whole_numbers_or_even_parts(gpus, count, shares):
    assert GpuNeed.parse("gpus", gpus) == GpuNeed(count, shares)


@pytest.mark.parametrize("gpus", [0.4, 0.6, 0.05, 1.5, -1, True, "1", float("nan"), float("inf")])
def test_other_numbers_are_refused_and_the_allowed_ones_named(gpus):
    with pytest.raises(errors.InvalidArgument, match=r"0\.5, 0\.333, 0\.25, .*0\.1; got"):
        TensorflowDistributor(2, gpus=gpus, launcher=LocalLauncher())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "jax"}, r"on jax, .* NCCL refuses it; got gpus=0\.5 for 2 workers"),
        (
            {"distribution": Distribution(communication=CommunicationOptions("nccl"))},
            r"needs a GPU for each worker; got gpus=0\.5 for 2 workers",
        ),
    ],
)
def test_what_only_nccl_connects_cannot_share_a_gpu(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(2, gpus=0.5, launcher=LocalLauncher(), **options)
    TensorflowDistributor(2, gpus=1, launcher=LocalLauncher(), **options)
    options["strategy"] = "multi_worker_mirrored"
    TensorflowDistributor(1, gpus=0.5, launcher=LocalLauncher(), **options)


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), ("512 MiB", 512 << 20), ("1.5GB", 1_500_000_000)]
)
def test_memory_has_a_unit(text, size):
    assert GpuOptions(memory=text).memory_in_bytes == size


@pytest.mark.parametrize("memory", [2048, "2", "2gib", "0MiB", "-1GiB", "lots"])
def test_other_memory_is_refused(memory):
    with pytest.raises(errors.InvalidArgument, match="such as '2GiB'"):
        TensorflowDistributor(gpu_options=GpuOptions(memory=memory), launcher=LocalLauncher())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 1, "env": {"CUDA_VISIBLE_DEVICES": "0"}}, "both decide which GPUs"),
        ({"gpus": 1, "roles": [Role("worker", 2)]}, r"Role\('worker', 4, gpus=1\)"),
    ],
)
def test_what_contradicts_itself_is_refused(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        TensorflowDistributor(launcher=LocalLauncher(), **options)


@pytest.mark.parametrize("role", ["ps", "evaluator"])
def test_servers_and_evaluators_never_get_a_gpu(role):
    with pytest.raises(errors.InvalidArgument, match=f"{role}.* can't have GPUs"):
        Role(role, 1, gpus=0.5)
    assert Role(role, 1, gpus=0).gpus == 0


def test_the_plan_says_who_gets_what(host):
    host.has(2)
    roles = [Role("ps", 1), Role("worker", 2, gpus=1), Role("evaluator")]
    distributor = TensorflowDistributor(
        roles=roles, strategy="parameter_server", launcher=LocalLauncher()
    )
    plan = distributor.plan(print)
    assert [str(task) for task in plan.tasks] == [
        *("chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0")
    ]
    assert plan.gpus == (0.0, 1.0, 1.0, 0.0, 0.0)
    assert "worker:0, worker:1: 1" in str(plan)


def test_a_stage_has_one_need():
    needs = [GpuNeed(1), GpuNeed(2), GpuNeed(0), GpuNeed(2)]
    assert group([0, 1, 3], needs, together=True) == [((0, 1, 3), GpuNeed(2))]
    assert group([0, 1, 2, 3], needs, together=False) == [
        ((0,), GpuNeed(1)),
        ((1, 3), GpuNeed(2)),
        ((2,), GpuNeed(0)),
    ]
    assert group([], needs, together=True) == []


def test_the_error_survives_pickling():
    error = errors.NotEnoughGpus("too few", 3, 2)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.required, again.available) == (
        *(errors.NotEnoughGpus, "too few", 3, 2),
    )
    assert isinstance(again, errors.NotEnoughSlots)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "2GiB", "allow_growth": True}, "either memory= or allow_growth"),
        ({"allow_growth": "yes"}, r"\(allow_growth=\) must be True or False"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options, words):
    with pytest.raises(errors.InvalidArgument, match=words):
        GpuOptions(**options)
