"""The notebooks run from a clean state, and show what they keep."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from documents import ROOT

from suite.waiting import LONGEST

FOLDER = ROOT / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
#: Of what a cell shows.
TEXTS = ("text/plain", "text/html")


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_whole_and_of_no_machine(name):
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "run it anew: examples/notebooks/execute.py"
    outputs = [each for cell in code for each in cell["outputs"]]
    assert outputs
    assert not [each for each in outputs if each["output_type"] == "error"]
    shown = [each.get("text") or [each["data"].get(kind) for kind in TEXTS] for each in outputs]
    text = json.dumps(shown)
    assert not re.search(r"/(?:tmp|home|root|work|Users)/", text)
    has_picture = any("image/png" in each.get("data", {}) for each in outputs)
    assert has_picture or name == "tfrecord"


def test_a_running_job_and_its_result_are_kept_as_html():
    outputs = [each for cell in cells("distributed-tensorflow") for each in cell.get("outputs", [])]
    shown = ["".join(each.get("data", {}).get("text/html", "")) for each in outputs]
    assert [">training</td>" in each for each in shown if ">job</th>" in each] == [True]
    assert [">balanced</td>" in each for each in shown if ">ledger</th>" in each] == [True]


def test_the_documents_lead_to_each():
    text = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"(../examples/notebooks/{name}.ipynb)" in text


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_shows_what_it_keeps(name, tmp_path):
    """As its reader would run it, from a clean state."""
    binaries = os.path.dirname(sys.executable)
    done = subprocess.run(
        [sys.executable, FOLDER / "execute.py", "--check", FOLDER / f"{name}.ipynb"],
        env={
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / ".cache" / "examples"),
            "IPYTHONDIR": str(tmp_path),
            "JUPYTER_RUNTIME_DIR": str(tmp_path),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
