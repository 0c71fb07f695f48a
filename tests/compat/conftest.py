"""Old programs, each in a job of its own on the shared Spark cluster."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""
