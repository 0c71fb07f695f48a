"""Every test of the backends looks for leaks. What isn't installed is skipped."""

from __future__ import annotations

import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from suite.new_process import skip_without


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks):
    """Apply to all."""


@pytest.fixture(scope="module", autouse=True)
def _by_value(by_value):
    """Apply to all, and before anything else of a module."""


@pytest.fixture(scope="module", params=["jax", "torch"])
def backend(request):
    """Give each backend that is installed."""
    skip_without(request.param)
    return request.param


@pytest.fixture(scope="module")
def distribute(backend):
    """Make a silent distributor of the backend."""

    def make(num_workers=2, **options):
        options = {"logs": "none", "progress": False, **options}
        return TensorflowDistributor(
            num_workers, backend=backend, launcher=LocalLauncher(), **options
        )

    return make
