"""A real server of Spark Connect, and a client that knows it by its address alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

for folder in ("docs", "yarn"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
from clients import notebook_of

from suite.sparks import connect
from suite.waiting import patience, wait_for

SPARK = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks):
    """Apply to all: the server's executors have the mark of the tests, too."""


@pytest.fixture(scope="module")
def server(scratch, tmp_path_factory):
    """Give the address of a server with three slots, as its own start script starts it."""
    log = tmp_path_factory.mktemp("connect") / "server.log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    words = [word for each in settings.items() for word in ("--conf", "=".join(each))]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                *(SPARK / "bin/spark-submit", "--master", "local[3]", *words),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                "spark-internal",
            ],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:

        def address():
            assert process.poll() is None, log.read_text()
            return re.search(r"server started at: \S*:(\d+)", log.read_text())

        found = wait_for(address, "the server", seen=log.read_text)
        yield f"sc://localhost:{found[1]}"
    finally:
        process.terminate()
        process.wait(patience())


@pytest.fixture(scope="module")
def client(server, tmp_path_factory):
    """Give a session that runs one function after the other."""
    folder = tmp_path_factory.mktemp("client")
    program = Path(__file__).parents[1] / "yarn" / "notebook.py"
    environment = {**os.environ, "SPARK_REMOTE": server, "PYTHONPATH": str(connect())}
    command = [sys.executable, program, folder / "socket"]
    with notebook_of(command, folder, environment) as each:
        yield each
