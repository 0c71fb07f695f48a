"""Which test files run which of gridflow's modules: written by --reach, asked by --changed.

A module counts as run by a test file if a function of it was executed, in any process that the
file's tests started, but for the executors of the suite's Spark cluster: all of them share those.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest

#: Where the processes of a run write what they reached, and for which test file.
FOLDER = "GRIDFLOW_TEST_REACH"
TEST = "GRIDFLOW_TEST_FILE"
ROOT = Path(__file__).parents[2]
TESTS = str(ROOT / "tests")
RECORD = ROOT / "tests" / "reach.json"
#: So many test files are kept for a module: those that run the fewest others.
_MOST = 12
_HOOK = Path(sysconfig.get_paths()["purelib"], "gridflow_test_reach.pth")


def pytest_addoption(parser):
    parser.getgroup("gridflow").addoption(
        "--reach",
        action="store_true",
        help="write which modules the tests run into tests/reach.json; they take longer",
    )


def pytest_configure(config):
    if config.getoption("reach") and not hasattr(config, "workerinput"):
        config.reached = Path(tempfile.mkdtemp(prefix="reached-"))
        start(config.reached)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    works_for(item.path.relative_to(TESTS).as_posix())
    return (yield)


def pytest_unconfigure(config):
    if hasattr(config, "reached"):
        finish(config.reached)
        shutil.rmtree(config.reached)


def start(folder):
    """Have all Python processes that begin from now on say what they run."""
    os.environ[FOLDER] = str(folder)
    # Read by Python as it starts: no process needs to know of it, or to import the suite.
    add, take = f"sys.path.append({TESTS!r})", f"sys.path.remove({TESTS!r})"
    _HOOK.write_text(
        f"import os, sys; os.environ.get({FOLDER!r}) and "
        f"({add}, __import__('suite.reaching'), {take})\n"
    )
    importlib.import_module("suite.reaching")


def finish(folder):
    """Update the record of the test files that have run."""
    _HOOK.unlink()
    reached, bodies = defaultdict(set), {}
    for path in folder.glob("*.json"):
        found = json.loads(path.read_text())
        for module, lines in found["lines"].items():
            if module not in bodies:
                bodies[module] = _lines_of_functions(ROOT / "src" / "gridflow" / module)
            if found["test"] and bodies[module].intersection(lines):
                reached[found["test"]].add(module)
    numbers, tests_of = read()
    numbers = {test: n for test, n in numbers.items() if Path(TESTS, test).exists()}
    numbers |= {test: len(modules) for test, modules in reached.items()}
    for test, modules in reached.items():
        for module in modules:
            tests_of.setdefault(module, []).append(test)
    kept = {}
    for module, tests in sorted(tests_of.items()):
        still = {t for t in tests if t in numbers and (t not in reached or module in reached[t])}
        if still:
            kept[module] = sorted(still, key=lambda test: (numbers[test], test))[:_MOST]
    record = {"modules of a test file": numbers, "test files of a module": kept}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def read():
    """Return how many modules each test file runs, and the test files of each module."""
    if not RECORD.exists():
        return {}, {}
    numbers, tests_of = json.loads(RECORD.read_text()).values()
    return numbers, tests_of


def _lines_of_functions(path):
    """Return the lines inside of functions: all others run when a module is imported."""
    if not path.exists():
        return set()
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        line
        for function in functions
        for line in range(function.body[0].lineno, function.end_lineno + 1)
    }


def works_for(file):
    """Say for which test file this process, and those that it starts, work from now on."""
    if FOLDER in os.environ and os.environ.get(TEST) != file:
        sys.modules["suite.reaching"].write()
        os.environ[TEST] = file
