"""Applications on a real YARN, configured and submitted as `docs/yarn.md` says."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from clients import Client, blocks, notebook_of


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks):
    """Apply to all: containers have the mark of the tests, too."""


@pytest.fixture(scope="session")
def client(yarn, tmp_path_factory, scratch):
    """Give a client with the guide's files."""
    return Client(yarn, tmp_path_factory.mktemp("client"), scratch)


@pytest.fixture(scope="session")
def data(client):
    """Put the guide's data into HDFS, as it says."""
    rows = "".join(f"{i / 1000},{2 * i / 1000 + 1}\n" for i in range(1000))
    (client.folder / "rows.csv").write_text(f"x,y\n{rows}")
    client.run(blocks("sh")[0], "data.log")


@pytest.fixture
def as_the_user(client, monkeypatch):
    """Let this process see HDFS as the client does."""
    for name in ("HADOOP_CONF_DIR", "HADOOP_USER_NAME"):
        monkeypatch.setenv(name, client.environment[name])


@pytest.fixture(scope="module")
def notebook(client):
    """Give a session that the guide's first command has submitted, with a GPU for each executor."""
    program = Path(__file__).with_name("notebook.py")
    address = str(client.folder / "socket")
    gpus = (line.split() for line in client.gpu_settings.splitlines())
    words = [word for name, value in gpus for word in ("--conf", f"{name}={value}")]
    # Containers have bash's own PATH, whatever their node's is.
    path = f"{client.yarn.binaries}{os.pathsep}{os.environ['PATH']}"
    words += ["--conf", f"spark.executorEnv.PATH={path}"]
    command = blocks("sh")[1].replace("train.py", shlex.join([*words, str(program), address]))
    with notebook_of(["bash", "-ec", f"exec {command}"], client.folder, client.environment) as each:
        yield each
