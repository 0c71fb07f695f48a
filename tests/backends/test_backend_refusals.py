"""What JAX and torch can't do is said at the call, or before any training process starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from gridflow import LocalLauncher, Role, TensorflowDistributor, errors
from gridflow._coordinator.environments import environment_failures
from gridflow._spec.cluster import Task


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "pytorch"}, ["'torch'", "Did you mean"]),
        ({"backend": "jax", "strategy": "mirrored"}, ["'mirrored'", "'multi_worker_mirrored'"]),
        ({"backend": "torch", "strategy": "server"}, ["'server'", "backend='tensorflow'"]),
        (
            {"backend": "jax", "roles": [Role("ps"), Role("worker", 2)]},
            ["'parameter_server'", "backend='jax'"],
        ),
        (
            {"backend": "torch", "roles": [Role("worker", 2), Role("evaluator")]},
            ["evaluator:0", "backend='torch'"],
        ),
        ({"env": {"KERAS_BACKEND": "jax"}}, ["KERAS_BACKEND='jax'", "backend='jax'"]),
    ],
)
def test_combinations_that_make_no_sense_are_refused_at_the_call(options, says):
    with pytest.raises(errors.InvalidArgument) as caught:
        TensorflowDistributor(launcher=LocalLauncher(), **options)
    for words in says:
        assert words in str(caught.value)


def test_the_plan_names_the_backend():
    distributor = TensorflowDistributor(2, backend="jax", launcher=LocalLauncher())
    plan = distributor.plan(lambda: None)
    assert (plan.backend, plan.strategy) == ("jax", "multi_worker_mirrored")
    assert "backend" in str(plan)


def _members(**versions):
    there = {
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "keras": "3.15.1",
        "gridflow": importlib.metadata.version("gridflow"),
        **versions,
    }
    return {Task("worker", 0): ("a", there), Task("worker", 1): ("b", {**there, "jax": "0.9.0"})}


def test_a_package_that_an_executor_lacks_or_has_in_another_version_is_named():
    ours = {"gridflow": importlib.metadata.version("gridflow"), "jax": "0.10.2"}
    (missing,) = environment_failures(
        _members(torch="2.9.0"), 0, needs=("jax", "keras"), driver=ours
    )
    assert (missing.task, missing.host, missing.kind) == ("worker:0", "a", "environment")
    assert missing.summary == "JAX is not installed for /usr/bin/python3"
    assert "gridflow[jax]" in missing.hint
    (differs,) = environment_failures(
        _members(jax="0.10.2"), 0, needs=("jax", "keras"), driver=ours
    )
    assert differs.summary == "it has jax 0.9.0, but worker:0 has 0.10.2 and the driver 0.10.2"
    # TensorFlow's versions don't matter to who doesn't use it.
    fits = _members(torch="2.9.0")
    assert environment_failures(fits, 0, needs=("torch", "keras"), driver=ours) == ()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_a_job_without_its_backend_ends_before_anything_is_started():
    distributor = TensorflowDistributor(
        2, backend="torch", launcher=LocalLauncher(), logs="none", progress=False
    )
    with pytest.raises(errors.EnvironmentMismatch) as caught:
        distributor.run(lambda: None)
    assert "torch is not installed" in str(caught.value)
    assert "gridflow[torch]" in caught.value.first.hint
