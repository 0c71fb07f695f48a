"""Every test of the runtime looks for leaks; many run over both launchers."""

from __future__ import annotations

import pytest

from gridflow import LocalLauncher, TensorflowDistributor


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


@pytest.fixture(params=["local", "spark"])
def launcher(request):
    """Give each launcher in turn."""
    if request.param == "local":
        return LocalLauncher()
    from gridflow import SparkLauncher

    return SparkLauncher(request.getfixturevalue("spark"))


@pytest.fixture
def distribute(launcher):
    """Make a distributor of two workers, silent unless asked otherwise."""

    def make(num_workers=2, strategy="none", **options):
        options = {"logs": "none", "progress": False, "launcher": launcher, **options}
        return TensorflowDistributor(num_workers, strategy, **options)

    return make
