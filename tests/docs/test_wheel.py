"""gridflow as a user gets it: a wheel in a fresh environment, and the README's script there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from documents import ROOT, check_what_the_readme_promises


def find_uv():
    """Return uv: of the PATH, or the one that ``make setup`` installed."""
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    assert uv, "there is no uv, neither in the PATH nor in .tools/bin: run 'make setup'"
    return uv


def uv(*arguments):
    """Run uv; its own settings stay, those of an active environment don't.

    A registry that says of Spark's package that it has changed has it fetched and built anew each
    time, which takes half a minute: what ``make setup`` has fetched is taken as it is.
    """
    done = _run_uv("--offline", *arguments)
    if done.returncode:
        done = _run_uv(*arguments)
    assert done.returncode == 0, done.stderr


def _run_uv(*arguments):
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return subprocess.run(
        [find_uv(), *map(str, arguments)],
        env={**environment, "UV_LINK_MODE": "hardlink"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_every_module_and_nothing_of_the_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    modules = {str(path.relative_to(source)) for path in (source / "gridflow").rglob("*.py")}
    assert modules <= names
    assert all(name.startswith(("gridflow/", "gridflow-")) for name in names)
    built = {Path(name).name.partition(".")[0] for name in names if name.endswith(".so")}
    assert built == {"exchange", "exchange_tensorflow"}
    licences = {Path(name).name for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


@pytest.fixture
def environment(tmp_path):
    """Give a fresh environment's folder, with nothing in it yet."""
    environment = tmp_path / "environment"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    uv("venv", "--quiet", "--python", version, environment)
    yield environment
    shutil.rmtree(environment)  # over a gigabyte, which pytest would keep for three runs


def install(environment, *words):
    """Install packages, and return the environment's Python."""
    python = environment / "bin" / "python"
    constraints = ROOT / "requirements" / "constraints.txt"
    uv("pip", "install", "--quiet", "--python", python, "--constraint", constraints, *words)
    return python


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_the_readmes_script_runs_from_a_wheel_in_a_fresh_environment(wheel, environment, tmp_path):
    """What the wheel depends on is taken from here: compiling all of it takes two minutes."""
    python = install(environment, "--no-deps", wheel)
    (site,) = environment.glob("lib/python*/site-packages")
    # Other files of that kind, such as the one of the working tree, aren't read there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    check_what_the_readme_promises(python, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_what_the_readme_has_installed_passes_smoke(wheel, environment, tmp_path):
    # ``make setup`` has put the packages of these extras into uv's cache.
    python = install(environment, f"gridflow[spark,tensorflow] @ {wheel.as_uri()}")
    check_what_the_readme_promises(python, tmp_path)
    smoke = [python, "-m", "gridflow.testing.smoke"]
    done = subprocess.run(smoke, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Spark wrote 1024 rows to a TFRecord file and read them" in done.stdout
