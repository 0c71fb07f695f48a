"""The Spark suite in ``on_spark``: whole with ``--all``, else what tries Spark's interfaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.sparks import ROOT, VERSIONS, connect, spark_of

pytestmark = pytest.mark.slow


def run_suite(version, path, *, in_full):
    # Most of it tries this project's reader and writer, which are the same for all versions; what
    # differs are the interfaces that Spark calls them by.
    arguments = ["tests/tfrecord/on_spark", *([] if in_full else ["-m", "interface"])]
    # For each random schema Spark compiles code.
    examples = 20 if in_full else 3
    environment = {
        **os.environ,
        "GRIDFLOW_TFRECORD_EXAMPLES": str(examples),
        "GRIDFLOW_TFRECORD_MEBIBYTES": "512" if in_full else "64",
        "GRIDFLOW_TFRECORD_SUITE": version,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment.pop("SPARK_HOME", None)
    options = ["-q", "-p", "no:cacheprovider", "--timeout", "250", "--durations", "12"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_suite_passes(jar, version, request):
    in_full = request.config.getoption("whole")
    other = spark_of(version)
    ran = run_suite(version, [] if other is None else [other], in_full=in_full)
    print(ran.stdout[-2500:])
    assert ran.returncode == 0, ran.stdout[-12000:] + ran.stderr[-4000:]


@pytest.mark.timeout(900)
def test_spark_connect_gets_the_data_source_as_an_artifact(jar):
    script = Path(__file__).parent / "on_connect.py"
    ran = subprocess.run(
        [sys.executable, str(script), jar],
        env={**os.environ, "PYTHONPATH": str(connect()), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    assert "rows 100, columns ['id', 'x'], functions ok" in ran.stdout
