"""What a training function finds around it."""

from __future__ import annotations

import os
import tempfile
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow._agent.folder import short_path, temporary_folder


@pytest.mark.slow
def test_temporary_files_are_the_tasks_own_and_a_second_spark_is_refused():
    def train():
        import tempfile
        from multiprocessing.connection import Listener

        from pyspark.sql import SparkSession

        from gridflow import errors

        Listener(family="AF_UNIX").close()
        _, path = tempfile.mkstemp()
        try:
            SparkSession.builder.master("local[1]").getOrCreate()
        except errors.GridflowError as error:
            return path, str(error)

    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    path, said = TensorflowDistributor(**quiet).run(train).value
    assert Path(path).parent.parent != Path(tempfile.gettempdir())
    assert not Path(path).exists()
    assert "Spark can't be used inside the training function" in said


@pytest.mark.parametrize("length", [1, 60, 150])
def test_a_folder_for_temporary_files_has_room_for_sockets_however_deep_it_lies(tmp_path, length):
    with temporary_folder("gridflow-deep-", tmp_path / ("x" * length)) as folder:
        (folder / "tmp").mkdir()
        with short_path(folder / "tmp") as short:
            assert len(str(short)) < 100
            (short / "file").touch()
            assert (folder / "tmp" / "file").exists()
            Listener(str(short / "listener-12345678"), "AF_UNIX").close()
        assert (folder / "tmp").exists()
    assert not os.path.lexists(short)
