"""Jobs that read and write files: each test looks for leaks."""

from __future__ import annotations

import pytest

from gridflow import LocalLauncher, TensorflowDistributor


@pytest.fixture(autouse=True)
def _no_leaks(no_leaks, by_value):
    """Apply to all."""


@pytest.fixture
def stored(request, monkeypatch, tmp_path):
    """Give a folder in a kind of store, for this process and its jobs."""
    kind = request.param
    if kind == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        return f"s3://bucket/{tmp_path.name}"
    if kind == "hdfs":
        monkeypatch.setenv("HADOOP_USER_NAME", "tests")
        return f"{request.getfixturevalue('hdfs')}/{tmp_path.name}"
    return str(tmp_path)


@pytest.fixture
def distribute():
    """Make a distributor of two workers on plain processes, silent."""

    def make(num_workers=2, strategy="none", **options):
        quiet = {"logs": "none", "progress": False, "launcher": LocalLauncher()}
        return TensorflowDistributor(num_workers, strategy, **{**quiet, **options})

    return make
