"""The documents as the tests read them, and how a user would run what is in them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from suite.waiting import LONGEST

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])

USERS_OWN = ("HOME", "JAVA_HOME", "LANG")
#: What Spark's logger writes, with a trace's lines; when a driver ends early that is much.
_OF_SPARK = re.compile(
    r"\d\d/\d\d/\d\d \d\d:|\s+at |(Caused by: )?(java|org\.apache)\.|\s+\.\.\. \d+ more"
)
_ROW = re.compile(r"^\|\s*([\d.eE+-]+)\|\s*([\d.eE+-]+)\|\s*([\d.eE+-]+)\|$", re.MULTILINE)


def python_blocks(page):
    """Return the code of all blocks marked ``python`` in a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def users_environment():
    """Return the environment of a user who has activated no virtual environment."""
    ours = Path(sys.prefix)
    path = os.environ["PATH"].split(os.pathsep)
    kept = {
        name: os.environ[name]
        for name in (*USERS_OWN, "JDK_JAVA_OPTIONS", "TMPDIR", "GRIDFLOW_TEST_MARK")
        if name in os.environ
    }
    return {**kept, "PATH": os.pathsep.join(p for p in path if not Path(p).is_relative_to(ours))}


def run(python, code, folder):
    """Run code as a file of its own, by the path of a Python."""
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.run(
        [str(python), str(script)],
        cwd=folder,
        env=users_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )


def without_javas(text):
    """Return the lines without those of Java itself, which come before anything could hide them."""
    return [
        line
        for line in text.splitlines()
        if "Using incubator modules" not in line and "Picked up JDK_JAVA_OPTIONS" not in line
    ]


def run_as_a_user(python, code, folder):
    """Run code as a file of its own; return what it printed."""
    done = run(python, code, folder)
    of_python = "".join(
        line for line in done.stderr.splitlines(keepends=True) if not _OF_SPARK.match(line)
    )
    assert done.returncode == 0, (
        f"{done.stdout[-5000:]}\n{of_python[-5000:]}\n\nAll, at first:\n{done.stderr[:5000]}"
    )
    return done.stdout


def check_what_the_readme_promises(python, folder):
    """Run the README's script: it learns y = 2x + 1, predicts it, and says nothing else."""
    (script,) = python_blocks("README.md")
    done = run(python, script, folder)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert without_javas(done.stderr) == []
    output = done.stdout
    *told, history = output[: output.index("\n+---")].splitlines()
    assert history.startswith("{")
    assert all(re.match(r"\[gridflow\] (epoch \d|waiting): ", line) for line in told), told
    assert output.endswith("only showing top 5 rows\n")
    (printed,) = re.findall(r"^\{'loss': .*\}$", output, re.MULTILINE)
    losses = ast.literal_eval(printed)["loss"]
    assert len(losses) == 5
    assert losses[-1] < 1e-3 < losses[0]
    rows = [tuple(map(float, row)) for row in _ROW.findall(output)]
    assert len(rows) == 5
    for x, y, prediction in rows:
        assert abs(y - (2 * x + 1)) < 1e-9
        assert abs(prediction - y) < 0.1
