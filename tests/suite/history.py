"""``--existed-at=COMMIT``: only the tests that there were at a commit of this repository.

How long the cases of then take today: a suite that doubles hides what became faster. All cases that
a test has today run, those that it has got since included.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Tests that have another name since, or whose cases are part of another one.
SINCE = {
    "test_a_command_that_is_not_there_is_a_permanent_failure": "…_and_named",
    "test_a_killed_executor_is_reported_as_lost": "…_once_no_training_process_is_left",
    "test_a_model_of_several_outputs_gives_the_one_that_is_asked_for": "…_or_a_struct",
    "test_columns_that_cant_be_fed_are_refused_at_the_call": (
        "test_columns_that_cant_be_fed_count_only_where_they_are_asked_for"
    ),
    "test_fewer_rows_than_workers_are_refused_by_the_local_launcher": (
        "test_the_local_launcher_lends_rows_too_where_there_are_fewer_than_workers"
    ),
    "test_no_text_in_tf_config_breaks_the_launcher_otherwise": (
        "test_no_text_in_tf_config_breaks_the_command_otherwise"
    ),
    "test_under_dynamic_allocation_executors_are_waited_for_until_start_timeout": (
        "test_under_dynamic_allocation_a_job_waits_for_executors_and_leaves_one_that_is_taken_back"
    ),
    "test_what_only_the_chief_returns_is_packed_by_the_chief_alone": (
        "test_what_another_rank_cannot_send_is_missing_and_no_failure"
    ),
}


def pytest_addoption(parser):
    parser.getgroup("gridflow").addoption(
        "--existed-at",
        metavar="COMMIT",
        help="only the tests that there were at a commit, under the names that they have today",
    )


def names_at(commit):
    """Return today's names of the tests of a commit."""
    found = subprocess.run(
        ["git", "grep", "-hoE", r"^def test_\w+", commit, "--", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise pytest.UsageError(f"--existed-at: no tests at {commit!r}. {found.stderr.strip()}")
    then = re.findall(r"^def (test_\w+)", found.stdout, re.MULTILINE)
    return {SINCE.get(name, name).replace("…", name) for name in then}


def pytest_collection_modifyitems(config, items):
    commit = config.getoption("existed_at")
    if commit is None:
        return
    names = names_at(commit)
    out = [item for item in items if item.originalname not in names]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item.originalname in names]
