"""Parameter servers on Spark: a chief, a parameter server and two workers fed from a DataFrame."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import asynchronous
from suite.new_process import WITH_SUITE
from suite.waiting import LONGEST

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("servers_on_spark.py")


@pytest.fixture(scope="module")
def found(scratch, tmp_path_factory):
    """Return what the job found."""
    path = tmp_path_factory.mktemp("servers") / "found.json"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(path)]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
        env={**os.environ, **WITH_SUITE},
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_row_arrives_and_every_step_counts_once(found):
    assert found["roles"] == {"chief": 1, "worker": 2, "ps": 1}
    assert sum(found["rows"].values()) == asynchronous.ROWS
    assert len(found["rows"]) == 2
    assert min(found["rows"].values()) > 0
    batches = sum(-(-rows // asynchronous.BATCH) for rows in found["rows"].values())
    assert found["steps"] == asynchronous.EPOCHS * batches
    assert all(device.startswith("/job:ps/") for device in found["devices"])


def test_the_loss_falls_as_far_as_that_of_synchronous_training(found):
    losses = found["history"]["loss"]
    assert len(losses) == asynchronous.EPOCHS
    assert losses[-1] < losses[0]
    assert found["evaluated"]["loss"] < 0.9 * losses[0]
    assert found["evaluated"]["loss"] == pytest.approx(found["synchronous"], rel=0.05)
    assert found["reported"] == found["history"]
