"""The folder by which a task's files are handed over: when it is there, and that none stays."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gridflow._feed.ingest.dataframes import Tags
from gridflow._feed.ingest.jvm_files import Segments
from gridflow._launch.spark.bodies import taking
from suite.waiting import patience

_PATIENCE = 30.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the task that this process seems to run."""
    import pyspark

    task = SimpleNamespace(taskAttemptId=lambda: 7)
    monkeypatch.setattr(pyspark.TaskContext, "get", lambda: task)
    return tmp_path / "rows-7"


def task(folder, function):
    """Return a task's function that wants files."""
    return taking(
        Segments("rows", str(folder.parent), Tags(("train",), ((("x", "x"),),))), function
    )


def fail(_batches):
    raise ArithmeticError("not these rows")
    yield


def test_who_fails_at_once_waits_until_sparks_side_has_seen_the_folder(folder):
    """Else that side waits ten seconds for a folder, and hears of the failure only then."""
    is_over = threading.Event()

    def see():
        while not folder.exists() and not is_over.wait(0.001):
            pass
        seen.append((folder / "pid").read_text())
        is_over.wait(0.3)
        (folder / "begun").touch()

    seen = []
    spark_side = threading.Thread(target=see, daemon=True)
    spark_side.start()
    with pytest.raises(ArithmeticError, match="not these rows"):
        list(task(folder, fail)(()))
    is_over.set()
    spark_side.join(patience())
    assert seen == [str(os.getpid())]
    assert list(folder.parent.iterdir()) == []


@pytest.mark.slow
def test_where_sparks_side_never_looks_nobody_waits_for_ever(folder):
    with pytest.raises(ArithmeticError, match="not these rows"):
        list(task(folder, fail)(()))
    assert list(folder.parent.iterdir()) == []


def test_files_that_come_while_it_is_deleted_stay_nowhere(folder, monkeypatch):
    """The name is gone before the first file is: what comes now finds no such folder."""
    delete = shutil.rmtree

    def overtaken(path, **_):
        if not Path(path).exists():
            return
        assert not folder.exists()
        monkeypatch.setattr(shutil, "rmtree", delete)
        for each in Path(path).iterdir():
            each.unlink()
        Path(path, "9-0.partial").touch()  # by a process that had found the folder before

    def begin_and_fail(_batches):
        (folder / "begun").touch()
        (folder / "0-0.partial").touch()
        monkeypatch.setattr(shutil, "rmtree", overtaken)
        raise ArithmeticError("not these rows")
        yield

    with pytest.raises(ArithmeticError, match="not these rows"):
        list(task(folder, begin_and_fail)(()))
    assert list(folder.parent.iterdir()) == []
