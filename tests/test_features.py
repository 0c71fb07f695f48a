"""Every feature has a test in `make test`, and `make test` takes no longer than it may."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path

import pytest

from gridflow._spec import backends, exits, strategies
from gridflow.deploy import TARGETS
from suite import selection, times

TESTS = Path(__file__).parent
TABLE = selection.features()
#: Seconds of all tests of `make test` on two quiet cores, three at a time: twelve minutes.
BUDGET = 3 * 11 * 60
ROOT = TESTS.parent
PROGRAMS = [
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if "```python" in page.read_text(encoding="utf-8")
]
PUBLIC = (
    "gridflow",
    "gridflow.data",
    "gridflow.deploy",
    "gridflow.ml",
    "gridflow.observers",
    "gridflow.tfrecord",
)


def slow_tests():
    """Return the recorded slow tests of `make test` with their seconds."""
    match = selection.matcher(selection.proofs())
    return {
        f"{file}::{name}": seconds
        for file, tests in times.read()[1].items()
        for name, seconds in tests.items()
        if match(f"{file}::{name}")
    }


def test_make_test_takes_twelve_minutes():
    quick, slow = sum(times.read()[0].values()), slow_tests()
    slowest = sorted(slow.items(), key=lambda each: -each[1])[:10]
    assert quick + sum(slow.values()) <= BUDGET, (
        f"`make test` takes {quick:.0f} s of quick tests and {sum(slow.values()):.0f} s of slow "
        f"ones: more than {BUDGET}. Name cheaper tests in {selection.TABLE.name}. "
        f"The slowest: {slowest}"
    )


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("strategy", strategies.STRATEGIES),
        ("backend", backends.BACKENDS),
        ("target", TARGETS),
        ("failure", exits.KINDS),
        ("exit", exits.Exit.__members__),
        ("page", PROGRAMS),
    ],
)
def test_each_has_a_row(kind, names):
    assert set(names) <= set(TABLE[kind])


def test_each_row_says_what_proves_it():
    for kind, rows in TABLE.items():
        for feature, row in rows.items():
            assert row["tests"], f"{kind}: {feature}"
            assert set(row) <= {"tests", "rest"}, f"{kind}: {feature}"
    for test in selection.proofs():
        assert "::" in test, f"{test} is a file: name its tests"


@functools.cache
def names_in_tests():
    """Return the names that the code of `make test` uses."""
    used = set()
    quick, slow = times.read()
    proven = {test.partition("::")[0] for test in slow_tests()}
    for path in TESTS.rglob("*.py"):
        file = path.relative_to(TESTS).as_posix()
        if file in slow and file not in quick and file not in proven:
            continue  # only make test-all runs it
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Name):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                used.update(alias.name for alias in node.names)
    return used


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_used_by_a_test(module):
    named = {name.removeprefix(f"{module}.") for name in TABLE["name"]}
    names = set(importlib.import_module(module).__all__)
    assert names - names_in_tests() - named == set(), "no test in make test uses these"
