"""The guide's program on YARN in cluster mode, with a Python environment that it brings along."""

from __future__ import annotations

import subprocess
import sys
import tarfile

import pytest
from clients import ROOT, blocks, check_the_model_in_hdfs

#: Keras' own, when a model is read.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def archive(client):
    """Pack an environment that borrows all of its packages from this one, by their paths."""
    folder = client.folder / "made"
    words = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(words, check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if "site-packages" in path]
    (packages / "borrowed.pth").write_text("\n".join([*borrowed, str(ROOT / "src")]))
    with tarfile.open(client.folder / "environment.tar.gz", "w:gz") as file:
        for path in folder.iterdir():
            file.add(path, path.name)


def test_the_guides_program_trains_in_cluster_mode_with_an_environment_of_its_own(
    client, data, archive, as_the_user, tmp_path
):
    said = client.run(blocks("sh")[2], "cluster.log")
    check_the_model_in_hdfs(tmp_path)
    assert "{'loss': [" in client.logs_of_application(said)
