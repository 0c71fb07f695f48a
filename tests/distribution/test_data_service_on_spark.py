"""The data service on Spark: two trainers, two data workers and a dispatcher that dies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("data_service_on_spark.py")


@pytest.mark.slow
def test_each_number_comes_once_and_training_is_as_without_it_on_spark(tmp_path, scratch):
    path = tmp_path / "found.json"
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-6000:]}"
    found = json.loads(path.read_text(encoding="utf-8"))
    assert "dispatcher:0, data:0, data:1" in found["plan"]
    for first, second in zip(*found["passes"], strict=True):
        assert sorted(first + second) == list(range(2_000))
    assert found["served"] == pytest.approx(found["plain"], abs=1e-6)
    assert "dispatcher:0: its process was killed by SIGKILL. It is restarted" in ended.stdout
