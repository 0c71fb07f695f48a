"""What tests need beside the environment: fetched once, by ``make connect`` and ``make sparks``."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ["4.0.5", "4.1.4", "4.3.0"]
#: The newest that Delta, Iceberg and Spark's source of Kafka are tried with: they have none newer.
WITH_CONNECTORS = "4.1.4"


def packages(folder, *requirements):
    """Install packages into a folder of their own, once, and give the folder."""
    target = ROOT / ".cache" / folder
    done = target / ".done"
    if not done.exists():
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        shutil.rmtree(target, ignore_errors=True)
        command = [uv, "pip", "install", "-q", "-p", sys.executable, "--target", str(target)]
        command += ["--compile-bytecode"]  # each Python that Spark starts would do it anew
        command += ["--no-cache"]  # of pyspark's builds 1.4 GB would stay, and not be found again
        subprocess.run([*command, *requirements], check=True)
        done.touch()
    return target


def spark(version):
    """Give where a version of pyspark lies."""
    return packages(f"pyspark/{version}", f"pyspark=={version}")


def with_connectors():
    """Give the environment of a process whose Spark the connectors are for."""
    path = spark_of(WITH_CONNECTORS)
    return {} if path is None else {"PYTHONPATH": str(path)}


def spark_of(version):
    """Give where a version of pyspark lies; None if it is that of the environment."""
    return None if importlib.metadata.version("pyspark") == version else spark(version)


def connect():
    """Give where lies what Spark Connect needs besides."""
    return packages(
        "spark-connect", "--no-deps", "grpcio-status", "googleapis-common-protos", "zstandard"
    )


if __name__ == "__main__":
    connect()
    for each in VERSIONS if "all" in sys.argv else ():
        spark(each)  # also the environment's own: other Pythons have none
