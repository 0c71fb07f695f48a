"""The jar's own tests, and that the same sources give the same bytes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_the_jars_own_tests_pass():
    ran = subprocess.run(
        ["mvn", "-B", "-q", "-f", "java/pom.xml", "test"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-8000:]


@pytest.mark.timeout(600)
def test_the_same_sources_give_the_same_bytes(jar, tmp_path):
    source = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "java", source, ignore=shutil.ignore_patterns("target"))
    subprocess.run(
        ["mvn", "-B", "-q", "-f", str(source / "pom.xml"), "package", "-Dmaven.test.skip=true"],
        check=True,
        capture_output=True,
    )
    again = (source / "target" / "gridflow-tfrecord.jar").read_bytes()
    with open(jar, "rb") as built:
        assert hashlib.sha256(built.read()).digest() == hashlib.sha256(again).digest()
