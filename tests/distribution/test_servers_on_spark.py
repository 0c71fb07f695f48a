"""Parameter servers on Spark: a chief, a parameter server and two workers fed from a DataFrame."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gridflow.testing import asynchronous

SCRIPT = Path(__file__).with_name("servers_on_spark.py")


def best_loss():
    """Return the mean square error of the best linear model: less than that is learned, too."""
    rows = asynchronous.rows()["rows"]
    x = np.column_stack([rows["x"], np.ones(len(rows["x"]))])
    return float(np.mean((x @ np.linalg.lstsq(x, rows["y"], rcond=None)[0] - rows["y"]) ** 2))


@pytest.fixture(scope="module")
def found(scratch, tmp_path_factory):
    """Return what the job found."""
    path = tmp_path_factory.mktemp("servers") / "found.json"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_row_arrives_and_every_step_counts_once(found):
    assert found["roles"] == {"chief": 1, "worker": 2, "ps": 1}
    assert sum(found["rows"].values()) == asynchronous.ROWS
    assert len(found["rows"]) == 2
    assert min(found["rows"].values()) > 0
    assert found["steps"] == asynchronous.STEPS
    assert all(device.startswith("/job:ps/") for device in found["devices"])


def test_it_learns_more_than_a_linear_model_can(found):
    losses = found["history"]["loss"]
    assert len(losses) == asynchronous.EPOCHS
    assert losses[-1] < losses[0]
    # The noise alone makes a loss of 1.
    assert 0.8 < found["evaluated"]["loss"] < best_loss()
    assert found["reported"] == found["history"]
