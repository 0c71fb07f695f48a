"""One session of the version under test. The suite is started by test_spark_versions.py."""

from __future__ import annotations

import os
import sys
import warnings

import pytest

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
if "GRIDFLOW_TFRECORD_SUITE" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


def pytest_configure(config):
    """What pyspark itself, in one version or another, warns about is not ours to fail for."""
    config.addinivalue_line(
        "markers", "interface: about what one version of Spark does unlike another; run on all"
    )
    if "GRIDFLOW_TFRECORD_SUITE" in os.environ:
        for warning in (
            "ResourceWarning",
            "pytest.PytestUnraisableExceptionWarning",
            "DeprecationWarning",
            "FutureWarning",
        ):
            config.addinivalue_line("filterwarnings", f"ignore::{warning}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    import pyspark
    from pyspark.sql import SparkSession

    from gridflow import tfrecord

    builder = SparkSession.builder.master("local[2]")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.files.openCostInBytes": "0",
    }.items():
        builder = builder.config(key, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = tfrecord.configure(builder).getOrCreate()
    assert session.version == pyspark.__version__ == os.environ["GRIDFLOW_TFRECORD_SUITE"]
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "data")
