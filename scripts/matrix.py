"""What people have, tried together: ``make matrix``, which writes the table of docs/versions.md.

Each pair of versions that can be installed together is tried in at least one environment, by
``gridflow.testing.smoke --spark``. Whatever can't be had (no package for this Python, versions that
exclude each other) is listed with its reason. Environments are made in ``.cache/matrix``, one at a
time, and deleted; ``--plan`` only shows them.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

from commands import ROOT, CommandFailed, uv

sys.path.insert(0, str(ROOT / "tests"))
from suite.pythons import find
from suite.sparks import spark

PLACE = ROOT / ".cache" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- written by make matrix -->", "<!-- end -->"
SECONDS = 600  # for what is tried in an environment
NEVER = 'python_version < "0"'

#: For each axis its levels, and what they install. Python stands first: all else depends on it.
AXES = {
    "Python": {"3.11": (), "3.12": (), "3.13": ()},
    "Spark": {"4.0.5": (), "4.1.4": (), "4.2.1": (), "4.3.0": ()},
    "TensorFlow": {
        "2.21": ("tensorflow-cpu>=2.21,<2.22",),
        "nightly": ("tf-nightly-cpu>=2.22.0.dev0",),
    },
    "Keras": {"3.15": ("keras>=3.15,<3.16",), "nightly": ("keras-nightly>=3.16.0.dev0",)},
    "pandas": {"2": ("pandas>=2.2,<3",), "3": ("pandas>=3,<4",)},
    "pyarrow": {"18": ("pyarrow>=18,<19",), "26": ("pyarrow>=26",)},
    "JAX": {
        "0.10": ("jax>=0.10,<0.11",),
        "0.11": ("jax>=0.11,<0.12",),
        "0.12": ("jax>=0.12,<0.13",),
    },
    "numpy": {"2.0 or 2.1": ("numpy>=2.0,<2.2",), "2.4 or later": ("numpy>=2.4",)},
}
#: The package that TensorFlow's or its nightly's requirements would bring beside this one.
INSTEAD = {("Keras", "3.15"): "keras-nightly", ("Keras", "nightly"): "keras"}
PACKAGES = {
    "Spark": ("pyspark",),
    "TensorFlow": ("tensorflow-cpu", "tf-nightly-cpu"),
    "Keras": ("keras", "keras-nightly"),
    "JAX": ("jax",),
}


# What can be installed ---------------------------------------------------------------------------


def requirements(levels):
    """Return what some levels install, and the package that another Keras is in the place of."""
    wanted = [each for axis, level in levels for each in AXES[axis][level]]
    return wanted, [f"{INSTEAD[pair]}; {NEVER}" for pair in levels if pair in INSTEAD]


@functools.cache
def own():
    """Return what gridflow itself requires."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@functools.cache
def hole(levels):
    """Return why some levels can't be installed together, in a line; None if they can."""
    python = dict(levels)["Python"]
    wanted, overrides = requirements(levels)
    if not wanted:
        return None if find(python) else f"this machine has no Python {python}"
    PLACE.mkdir(parents=True, exist_ok=True)
    override = PLACE / "overrides.txt"
    override.write_text("\n".join(overrides))
    words = ("pip", "compile", "--quiet", "--python-version", python, "--only-binary", ":all:")
    text = "\n".join([*own(), *wanted])
    for more in (["--offline"], []):  # what uv knows of a package already is true enough
        try:
            uv(*words, *more, "--override", override, "-", input=text)
        except CommandFailed as error:
            said = error.said
            if "network was disabled" not in said and "cache" not in said:
                break
        else:
            return None
    return reason(said)


def reason(said):
    """Return of uv's explanation the first sentence that tells a cause."""
    text = " ".join(said.split())
    because = re.search(r"Because (.*?)(?:, we can conclude|\.? And because| hint:|$)", text)
    return (because[1] if because else text)[:200].replace("|", "/").rstrip(" .")


def completed(levels, untried):
    """Return some levels with one of each other axis, so that many pairs are new; None if none fit.

    The first level that fits is taken for one axis after the other; where that leads nowhere, the
    next one is.
    """
    axis = next((axis for axis in AXES if axis not in dict(levels)), None)
    if axis is None:
        return levels

    def new(level):
        return sum(frozenset(((axis, level), other)) in untried for other in levels)

    for level in sorted(AXES[axis], key=new, reverse=True):
        more = in_order((*levels, (axis, level)))
        if "Python" in dict(more) and hole(more):
            continue
        if row := completed(more, untried):
            return row
    return None


def in_order(levels):
    return tuple(sorted(levels, key=lambda level: list(AXES).index(level[0])))


def plan():
    """Return environments that have each possible pair of levels, and why the others aren't."""
    levels = [(axis, level) for axis in AXES for level in AXES[axis]]
    pairs = [pair for pair in itertools.combinations(levels, 2) if pair[0][0] != pair[1][0]]
    untried, rows, holes = {frozenset(pair) for pair in pairs}, [], []
    for pair in pairs:
        if frozenset(pair) not in untried:
            continue
        if row := completed(pair, untried):
            rows.append(row)
            untried -= {frozenset(each) for each in itertools.combinations(row, 2)}
        else:
            holes.append((pair, why_not(pair)))
    return rows, holes


def why_not(pair):
    """Return why a pair isn't in any environment."""
    alone = [pair] if "Python" in dict(pair) else [(("Python", v), *pair) for v in AXES["Python"]]
    return "; ".join(dict.fromkeys(filter(None, map(hole, alone)))) or "nothing else fits both"


# An environment ----------------------------------------------------------------------------------


def make(levels, folder):
    """Make an environment of these levels; Spark, which is large, lies beside it."""
    python = folder / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    uv("venv", "--quiet", "--python", find(dict(levels)["Python"]), folder)
    wanted, overrides = requirements(levels)
    override = folder / "overrides.txt"
    override.write_text("\n".join(overrides))
    install = ("pip", "install", "--quiet", "--python", python)
    uv(*install, "--only-binary", ":all:", "--override", override, *own(), *wanted)
    uv(*install, "--no-deps", "--editable", ROOT)
    return python


def try_out(levels):
    """Return what passed and what failed with these levels."""
    folder, results = PLACE / "environment", PLACE / "environment.json"
    results.unlink(missing_ok=True)
    try:
        python = make(levels, folder)
        environment = {
            **os.environ,
            "PYTHONPATH": str(spark(dict(levels)["Spark"])),
            "PYSPARK_PYTHON": str(python),
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        environment.pop("SPARK_HOME", None)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        words = [python, "-m", "gridflow.testing.smoke", "--spark", "--json", results]
        said = run_for(SECONDS, words, environment)
    except CommandFailed as error:
        return {"versions": {}, "passed": {}, "failed": {"environment": reason(error.said)}}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    (PLACE / "last.log").write_text(said)
    if results.exists():
        return json.loads(results.read_text())
    last = (said.strip() or "nothing").splitlines()[-1]
    return {"versions": {}, "passed": {}, "failed": {"all": last}}


def run_for(seconds, words, environment):
    """Run a command with all that it starts, no longer than that; return what it prints."""
    with subprocess.Popen(
        list(map(str, words)),
        cwd=PLACE,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{process.communicate()[0]}\nnot done in {seconds} s"


# The page ----------------------------------------------------------------------------------------


def cell(axis, level, versions):
    """Return a level as a cell: its exact version, where the environment told it."""
    names = PACKAGES.get(axis, (axis,))
    return next((versions[name] for name in names if name in versions), level)


def table(found, holes):
    """Return what was tried as Markdown."""
    parts = list(dict.fromkeys(part for each in found for part in each["passed"]))
    lines = [f"Tried on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}:", ""]
    lines += [f"| {' | '.join(AXES)} | result |", f"|{'---|' * (len(AXES) + 1)}"]
    for each in found:
        cells = [cell(axis, level, each["versions"]) for axis, level in each["levels"]]
        failed = "<br>".join(
            f"{part} fails: {one_line(why)}" for part, why in each["failed"].items()
        )
        lines.append(f"| {' | '.join(cells)} | {failed or f'all {len(parts)} pass'} |")
    lines += ["", "Pairs that can't be installed together:", "", "| | | reason |", "|---|---|---|"]
    for pair, why in holes:
        one, other = (f"{axis} {level}" for axis, level in pair)
        lines.append(f"| {one} | {other} | {why} |")
    return "\n".join(lines)


def one_line(text):
    """Return the first line of an error, short enough for a table."""
    first = next(iter(text.strip().splitlines()), "")
    return first[:160].replace("|", "/")


def write(found, holes):
    """Put the table into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(found, holes)}\n\n{END}{after}")


def main():
    """Plan, try and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", action="store_true", help="only show what would be tried")
    parser.add_argument("--again", action="store_true", help="try what failed the last time")
    given = parser.parse_args()
    rows, holes = plan()
    if given.plan:
        print(
            table(
                [{"levels": row, "versions": {}, "passed": {}, "failed": {}} for row in rows],
                holes,
            )
        )
        return 0
    results = PLACE / "results.json"
    before = json.loads(results.read_text()) if given.again and results.exists() else {}
    found = []
    for place, row in enumerate(rows, 1):
        name = ", ".join(f"{axis} {level}" for axis, level in row)
        if name in before and not before[name]["failed"]:
            each = before[name]
        else:
            began = time.monotonic()
            each = try_out(row) | {"levels": row}
            shown = ", ".join(each["failed"]) or "nothing"
            print(
                f"{place}/{len(rows)} {name}: {shown} failed, {time.monotonic() - began:.0f} s",
                flush=True,
            )
        before[name] = each
        found.append(each)
        results.write_text(json.dumps(before, indent=1))
    write(found, holes)
    return 1 if any(each["failed"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
