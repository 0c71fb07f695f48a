"""The main job on the other versions of Python that are supported, with the newest Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_spark_releases import SCRIPT

from suite import pythons

sys.path.insert(0, str(Path(__file__).parents[1] / "tfrecord"))
from packages import VERSIONS as SPARKS
from packages import spark_of

pytestmark = pytest.mark.slow


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", pythons.VERSIONS)
def test_a_keras_model_is_trained_by_another_python(version, tmp_path):
    python = pythons.environment(version)
    if python is None:
        pytest.skip(f"this machine has no Python {version}")
    environment = {
        **os.environ,
        "PYTHONPATH": str(spark_of(SPARKS[-1])),
        "PYSPARK_PYTHON": python,
    }
    for name in ("SPARK_HOME", "JDK_JAVA_OPTIONS"):  # the archive of classes is another Spark's
        environment.pop(name, None)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [python, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said, done.stdout[-4000:] + done.stderr[-9000:]
    found = json.loads(said[0].removeprefix("SAID "))
    assert [each.rpartition(".")[0] for each in found.pop("python")] == [version] * 3
    assert found == {"version": SPARKS[-1], "loss": 1, "rows": 64, "model": "TrainedModel"}
