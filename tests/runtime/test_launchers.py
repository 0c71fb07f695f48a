"""Launchers by name, and the suite that each of them passes."""

from __future__ import annotations

import importlib.metadata

import pytest

from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor, errors
from gridflow._launch import base
from gridflow.testing.launchers import LauncherSuite


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks", "by_value")
class TestLocalLauncher(LauncherSuite):
    def launcher(self):
        return LocalLauncher()


@pytest.mark.usefixtures("no_leaks", "by_value")
class TestSparkLauncher(LauncherSuite):
    @pytest.fixture(autouse=True)
    def _session(self, spark):
        self._spark = spark

    def launcher(self):
        return SparkLauncher(self._spark)

    def rows(self, count):
        return self._spark.range(count).selectExpr("cast(id as float) as x")


class Brought:
    """A launcher of another package."""

    def for_job(self):
        return self

    def place(self, *_, **__):
        raise errors.NotEnoughSlots("it has none", 1, 0)

    def launch(self, *_, **__):
        raise AssertionError


def test_launchers_of_other_packages_go_by_their_names(monkeypatch):
    there = importlib.metadata.EntryPoint("slurm", f"{__name__}:Brought", base.GROUP)
    monkeypatch.setattr("gridflow._spec.brought.entry_points", lambda group: [there])
    with pytest.raises(errors.NotEnoughSlots, match="it has none"):
        TensorflowDistributor(launcher="slurm").run(print)
    assert isinstance(base.launcher_of("local"), LocalLauncher)
    with pytest.raises(errors.InvalidArgument, match=r"supported: local, slurm, spark.*'slurm'\?"):
        TensorflowDistributor(launcher="slrum")


@pytest.mark.parametrize("given", [7, LocalLauncher, object()])
def test_what_is_no_launcher_is_refused_at_the_call(given):
    with pytest.raises(errors.InvalidArgument, match="launcher= must be a name or an object"):
        TensorflowDistributor(launcher=given)
