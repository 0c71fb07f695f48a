"""Whole programs: the examples of conversion beside their twins, and one that is left unchanged."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.waiting import LONGEST

FOLDER = Path(__file__).parents[2] / "examples" / "conversion"
#: What counts as learned; of guessing: 0.1, for shapes 0.33, for pixels 0.87.
ENOUGH = {"resnet": 0.5, "unet": 0.9, "streaming": 0.6}


@pytest.mark.slow
def test_a_program_of_its_time_runs_as_it_is(tmp_path):
    program = Path(__file__).parent / "programs" / "old_pipeline.py"
    ended = subprocess.run(
        [sys.executable, "-m", "gridflow.compat.tfos.run", str(program), "--out", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-5000:]
    (found,) = re.findall(r"^prediction (.*)$", ended.stdout, re.MULTILINE)
    assert float(found) == pytest.approx(3.14 + 1.618, abs=0.05)
    assert list((tmp_path / "model").glob("weights-0001*"))


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("time", ["old", "today"])
def test_programs_of_both_times_learn(jar, tmp_path, time):
    ended = subprocess.run(
        [sys.executable, str(FOLDER / "run_all.py"), "--time", time],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-5000:]
    lines = re.findall(r"^(\w+): (.*) in [\d.]+ s$", ended.stdout, re.MULTILINE)
    found = {name: ast.literal_eval(value) for name, value in lines}
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"common", "run_all"}
    assert set(found) == {each for each in programs if each.endswith("_old") == (time == "old")}
    for name, value in found.items():
        least = ENOUGH.get(name.removesuffix("_old"), 0.8)
        scores = value if isinstance(value, list) else [value]
        assert scores, name
        assert min(scores[-1:]) > least, found
