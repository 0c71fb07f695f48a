"""The data service on Spark: two trainers, two data workers and a dispatcher that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.data_service import most_missing
from suite.new_process import WITH_SUITE
from suite.waiting import LONGEST

SCRIPT = Path(__file__).with_name("data_service_on_spark.py")


@pytest.mark.slow
def test_numbers_come_as_the_page_says_and_training_is_as_without_it_on_spark(tmp_path, scratch):
    path = tmp_path / "found.json"
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
    found = json.loads(path.read_text(encoding="utf-8"))
    assert "dispatcher:0, data:0, data:1" in found["plan"]
    whole, interrupted = (
        sorted(first + second) for first, second in zip(*found["passes"], strict=True)
    )
    assert whole == list(range(2_000))
    # The dispatcher dies in the second pass: each data worker may lose what it had just asked for.
    assert (
        len(set(interrupted)) == len(interrupted) >= 2_000 - most_missing(2_000, 2, "dispatcher:0")
    )
    assert found["served"] == pytest.approx(found["plain"], abs=1e-6)
    assert "dispatcher:0: its process was killed by SIGKILL. It is restarted" in ended.stdout
