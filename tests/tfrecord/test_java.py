"""The jar's own tests, by JUnit, and its sources' layout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_the_jars_own_tests_pass():
    ran = subprocess.run(
        [os.environ.get("MVN", "mvn"), "-B", "-q", "-f", "java/pom.xml", "spotless:check", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]
