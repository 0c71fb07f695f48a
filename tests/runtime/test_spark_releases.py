"""The main job on the oldest Spark that is supported, whole and small; with ``--all`` on others."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from suite import classes
from suite.sparks import VERSIONS, spark, spark_of
from suite.waiting import LONGEST

pytestmark = pytest.mark.slow

SCRIPT = """
import json
import platform
import pyspark
from pyspark.sql import SparkSession
from gridflow import LaunchOptions, SparkLauncher, TensorflowDistributor

def train(ctx):
    import keras
    import platform
    print("python", platform.python_version())
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ctx.dataset("train", batch_size=16, features=[["x"]], label="y")
    model.fit(rows, epochs=1, verbose=0, callbacks=ctx.callbacks())
    return model

builder = SparkSession.builder.master("local-cluster[2,1,600]")
builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", "false")
spark = builder.config("spark.executor.memory", "600m").getOrCreate()
data = spark.range(64).selectExpr("float(id) / 64 as x", "float(id) / 32 as y")
launcher = SparkLauncher(spark)
options = {"launcher": launcher, "logs": "none", "progress": False}
options["launch_options"] = LaunchOptions(warm_seconds=0)
result = TensorflowDistributor(2, **options).run(train, data=data)
lines = [line for rank in (0, 1) for line in result.logs(rank).splitlines()]
pythons = [line.split()[1] for line in lines if line.startswith("python ")]
print("SAID", json.dumps({
    "version": pyspark.__version__,
    "python": [platform.python_version(), *pythons],
    "loss": len(result.history["loss"]),
    "rows": sum(each.rows_in for each in result.ledger.counts.values()),
    "model": type(result.model).__name__,
}))
"""


def told_by(python, version, folder):
    """Return what the script tells, run by a Python with a version of Spark."""
    # Only this environment has a Spark of its own.
    path = spark_of(version) if python == sys.executable else spark(version)
    environment = {
        **os.environ,
        "PYTHONPATH": str(path or ""),
        "PYSPARK_PYTHON": python,
        "JDK_JAVA_OPTIONS": classes.QUICK,  # the archive of classes is another Spark's
    }
    environment.pop("SPARK_HOME", None)
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [python, "script.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    assert said, done.stdout[-4000:] + done.stderr[-9000:]
    return json.loads(said[0].removeprefix("SAID "))


def expected_of(version):
    return {"version": version, "loss": 1, "rows": 64, "model": "TrainedModel"}


@pytest.mark.parametrize("version", VERSIONS[:-1])
def test_a_keras_model_is_trained_on_two_executors(version, no_leaks, tmp_path):
    found = told_by(sys.executable, version, tmp_path)
    assert found.pop("python") == [platform.python_version()] * 3
    assert found == expected_of(version)
