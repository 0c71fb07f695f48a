"""One run of each kind of `python -m chaos`."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from chaos import faults, jobs
from chaos.__main__ import end_of
from suite.new_process import skip_without

pytestmark = [
    pytest.mark.slow,
    #: pyspark leaves the sockets of collect() to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


#: In one process, which has a cluster of its own.
_ON_SPARK = pytest.mark.xdist_group("chaos on Spark")


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    """End what the runs on Spark need."""
    os.environ[faults.MARK] = str(os.getpid())
    yield
    jobs.close()
    del os.environ[faults.MARK]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("pulled", "stop"),
        ("replaced", "kill an agent"),
        ("elastic", "kill"),
        ("elastic on torch", "kill"),
        ("elastic loop", "kill"),
        ("parameter servers", "kill"),
        ("pushed", "starve"),
        pytest.param("on Spark", "kill an executor", marks=_ON_SPARK),
        pytest.param("old program", "kill", marks=_ON_SPARK),
        ("two hosts", "cut"),
    ],
)
def test_what_goes_wrong_ends_right_or_in_an_error_that_names_a_task(kind, fault):
    if kind == "two hosts" and (os.geteuid() or shutil.which("ip") is None):
        pytest.skip("network namespaces need root and the command ip")
    if kind == "elastic on torch":
        skip_without("torch")
    end = end_of(kind, fault, random.Random(3))
    assert not end.startswith("WRONG"), end
