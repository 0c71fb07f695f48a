"""Old programs, each in a job of its own on the shared Spark cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


@pytest.fixture(scope="session")
def jar():
    """Build the jar if need be."""
    root = Path(__file__).parents[2]
    built = subprocess.run(["make", "-s", "jar"], cwd=root, capture_output=True, check=False)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]


@pytest.fixture(autouse=True)
def _own_environment():
    """Forget the variables that a node sets in its own process, as it does in an executor."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
