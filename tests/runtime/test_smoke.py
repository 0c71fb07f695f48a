"""``python -m gridflow.testing.smoke --spark``, as `make matrix` and users run it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from suite.waiting import LONGEST

pytestmark = pytest.mark.slow

PARTS = ["job", "feed", "estimator", "predict_udf", "tfrecord", "jax"]
BROKEN = """
import sys
from gridflow.testing import smoke
smoke._PARTS = {"predict_udf": smoke._predict, "tfrecord": smoke._tfrecords}
smoke._model = lambda: 1 / 0
sys.exit(smoke._main())
"""


def try_out(words, folder):
    """Run it with a file for its results; return its exit code, what it prints and the results."""
    results = folder / "results.json"
    done = subprocess.run(
        [sys.executable, *words, "--spark", "--json", results],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(results.read_text())


def test_every_part_passes_here(no_leaks, tmp_path):
    code, said, found = try_out(["-m", "gridflow.testing.smoke"], tmp_path)
    assert code == 0, said
    assert (list(found["passed"]), found["failed"]) == (PARTS, {})
    assert "job: two workers learned slope" in said
    assert found["versions"]["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"pyspark", "pandas", "jax"} <= found["versions"].keys()


def test_a_part_that_fails_is_told_and_the_next_ones_are_tried(no_leaks, tmp_path):
    code, said, found = try_out(["-c", BROKEN], tmp_path)
    assert code == 1
    assert found["failed"] == {"predict_udf": "ZeroDivisionError: division by zero"}
    assert list(found["passed"]) == ["tfrecord"]
    assert "predict_udf: FAILED" in said
    assert "in <lambda>" in said or "line 5" in said  # the traceback
