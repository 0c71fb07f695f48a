"""The jar in the wheel: built by Maven where need be, left out with a warning without Maven."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
IN_WHEEL = "gridflow/tfrecord/gridflow-tfrecord.jar"


def uv(*arguments, **variables):
    """Run uv and return what it says."""
    command = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    assert command, "there is no uv: run 'make setup'"
    ran = subprocess.run(
        [command, *map(str, arguments)],
        env={**os.environ, "UV_LINK_MODE": "hardlink", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture
def clone(tmp_path):
    """Copy what a wheel is made of, without anything that was built."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", ".gitignore"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    built = shutil.ignore_patterns("__pycache__", "target", "*.jar")
    for name in ("src", "java"):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    return folder


def jar_in(folder):
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        return content.read(IN_WHEEL) if IN_WHEEL in content.namelist() else None


def test_the_wheel_holds_the_jar_that_is_built_already(clone, jar, tmp_path):
    (clone / "java" / "target").mkdir()
    shutil.copy(jar, clone / "java" / "target")
    uv("build", "--wheel", "--out-dir", tmp_path / "out", clone, MVN="no-such-maven")
    assert jar_in(tmp_path / "out") == Path(jar).read_bytes()


def test_the_same_sources_give_the_same_jar_elsewhere_and_by_way_of_an_sdist(clone, jar, tmp_path):
    uv("build", "--out-dir", tmp_path / "out", clone)
    assert list((tmp_path / "out").glob("*.tar.gz"))
    assert jar_in(tmp_path / "out") == Path(jar).read_bytes()


def test_sources_younger_than_the_jar_are_built_again(clone, jar, tmp_path):
    (clone / "java" / "target").mkdir()
    stale = clone / "java" / "target" / "gridflow-tfrecord.jar"
    stale.write_bytes(b"old")
    os.utime(stale, (1, 1))
    uv("build", "--wheel", "--out-dir", tmp_path / "out", clone)
    assert jar_in(tmp_path / "out") == Path(jar).read_bytes()


def test_without_maven_the_wheel_is_built_with_a_warning(clone, tmp_path):
    said = uv("build", "--wheel", "--out-dir", tmp_path / "out", clone, MVN="no-such-maven")
    assert "Maven is not installed" in said
    assert "spark.read.format('tfrecord')" in said
    assert jar_in(tmp_path / "out") is None


def test_an_editable_install_needs_no_maven(clone, tmp_path):
    target = tmp_path / "target"
    install = ["pip", "install", "--no-deps", "--python", sys.executable, "--target", target]
    said = uv(*install, "--editable", clone, MVN="no-such-maven")
    assert "Maven" not in said
    assert (target / "gridflow-0.1.0.dist-info").exists()
    assert not (clone / "java" / "target").exists()
