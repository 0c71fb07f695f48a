"""The jar, built when its sources are newer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def jar():
    """Build the jar if need be and give its path."""
    built = subprocess.run(
        ["make", "-s", "jar"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    from gridflow import tfrecord

    return tfrecord.jar()
