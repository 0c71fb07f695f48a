"""Every test of distribution looks for leaks."""

from __future__ import annotations

import pytest

from gridflow import LocalLauncher, Role, TensorflowDistributor


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


@pytest.fixture
def distribute():
    """Make a silent distributor of tasks on this machine, given by role."""

    def make(strategy, *, launcher=None, options=None, **counts):
        return TensorflowDistributor(
            roles=[Role(name, count) for name, count in counts.items()],
            strategy=strategy,
            launcher=launcher or LocalLauncher(),
            **{"logs": "none", "progress": False, **(options or {})},
        )

    return make
