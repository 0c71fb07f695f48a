"""The end of a run tells where its time went: by folder, and the slowest tests."""

from __future__ import annotations

import collections
import time

_SLOWEST = 10
#: A handful of tests is watched anyway.
_WORTH_TELLING = 20
_began = time.monotonic()


def pytest_terminal_summary(terminalreporter):
    """Print the time of all phases of all tests; under xdist this is the controller's process."""
    tests = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "when") and hasattr(report, "duration"):
                tests[report.nodeid.partition("@")[0]] += report.duration
    if len(tests) < _WORTH_TELLING:
        return
    folders, numbers = collections.Counter(), collections.Counter()
    for test, seconds in tests.items():
        # Files that lie in no folder of their own stand for themselves.
        folder = "/".join(test.partition("::")[0].split("/")[:2])
        folders[folder] += seconds
        numbers[folder] += 1
    workers = terminalreporter.config.getoption("numprocesses", None) or 1
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
