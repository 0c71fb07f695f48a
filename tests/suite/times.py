"""How long tests take: what the end of a run tells, and the record that runs are planned by.

``--record`` writes the record, ``tests/durations.json``: the seconds of each slow test with its
fixtures, and those of the quick ones of each file together.
"""

from __future__ import annotations

import collections
import functools
import json
import subprocess
import time
from pathlib import Path

RECORD = Path(__file__).parents[1] / "durations.json"
#: A test that takes so many times its record is named, if it took some seconds.
_TIMES, _SECONDS = 3, 10
#: What a test is taken to need that has no record.
_UNKNOWN = 5.0
_SLOWEST = 10
#: A handful of tests is watched anyway.
_WORTH_TELLING = 20
_began = time.monotonic()


def pytest_addoption(parser):
    parser.getgroup("gridflow").addoption(
        "--record",
        action="store_true",
        help="write how long the tests take into tests/durations.json",
    )


@functools.cache
def read():
    """Return the recorded seconds of quick tests by file, and of slow ones by file and name."""
    if not RECORD.exists():
        return {}, {}
    record = json.loads(RECORD.read_text())
    return record["quick"], record["slow"]


@functools.cache
def committed():
    """Return the seconds of slow tests in the last commit: other parts of a run may record some."""
    place = f"HEAD:./{RECORD.name}"
    found = subprocess.run(
        ["git", "show", place], cwd=RECORD.parent, capture_output=True, text=True, check=False
    )
    return json.loads(found.stdout)["slow"] if found.returncode == 0 else {}


def seconds_of(nodeid, record=None):
    """Return a slow test's recorded seconds."""
    file, _, name = nodeid.partition("@")[0].removeprefix("tests/").partition("::")
    known = read()[1] if record is None else record
    return known.get(file, {}).get(name, _UNKNOWN)


def pytest_terminal_summary(terminalreporter, config):
    """Print the time of all phases of all tests; under xdist this is the controller's process."""
    tests, slow = collections.Counter(), set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "when") and hasattr(report, "duration"):
                test = report.nodeid.partition("@")[0]
                tests[test] += report.duration
                if dict(report.user_properties).get("slow"):
                    slow.add(test)
    if config.getoption("record"):
        _update(tests, slow)
    if len(tests) < _WORTH_TELLING:
        return
    folders, numbers = collections.Counter(), collections.Counter()
    for test, seconds in tests.items():
        # Files that lie in no folder of their own stand for themselves.
        folder = "/".join(test.partition("::")[0].split("/")[:2])
        folders[folder] += seconds
        numbers[folder] += 1
    workers = config.getoption("numprocesses", None) or 1
    wall, total = time.monotonic() - _began, sum(folders.values())
    write = terminalreporter.write_line
    terminalreporter.section("time")
    write(
        f"{wall:8.1f} s passed; {workers} at a time were at work for {total / workers / wall:.0%}"
    )
    for folder, seconds in folders.most_common():
        write(f"{seconds:8.1f} s {numbers[folder]:5} {folder}")
    terminalreporter.section(f"the {_SLOWEST} slowest")
    for test, seconds in tests.most_common(_SLOWEST):
        write(f"{seconds:8.1f} s {test}")
    slower = [
        (test, seconds, seconds_of(test))
        for test, seconds in sorted(tests.items())
        if test in slow and seconds > _SECONDS and seconds > _TIMES * seconds_of(test)
    ]
    if slower:
        terminalreporter.section(f"over {_TIMES} times their record")
    for test, seconds, before in slower:
        write(f"{seconds:8.1f} s instead of {before:.1f}: {test}")


def _update(tests, slow):
    """Replace the seconds of what has run, and forget the files that are gone."""
    quick, others = read()
    short = collections.Counter()
    for test, seconds in tests.items():
        file, _, name = test.removeprefix("tests/").partition("::")
        if test in slow:
            others.setdefault(file, {})[name] = round(seconds, 1)
        else:
            short[file] += seconds
    quick |= {file: round(seconds, 1) for file, seconds in short.items()}
    record = {
        name: {file: part[file] for file in sorted(part) if (RECORD.parent / file).exists()}
        for name, part in (("quick", quick), ("slow", others))
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
