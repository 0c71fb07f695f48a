"""A job goes on with more workers once there is room for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.waiting import patience


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("allocation", ["static", "dynamic"])
def test_a_job_that_begins_with_few_workers_grows_at_the_end_of_an_epoch(allocation, tmp_path):
    driver = Path(__file__).with_name("growing_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(tmp_path), allocation],
        env={**os.environ, "PYTHONPATH": str(driver.parents[1])},  # of the suite
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["sizes"][-2:] == [[1], [2]]
    assert set(told["failures"]) == {None}
    assert told["workers"] == [2, 2]
    assert told["epochs"] == 6
    assert 0 < told["resumed_from"] < 6
    assert told["ledger"] == []
    assert told["apart"] < 1e-6
    if allocation == "dynamic":  # where Spark waits for executors that may come
        assert "1 of 3 workers have come within 20 seconds" in done.stdout
    assert "there is room for 2 workers" in done.stdout
