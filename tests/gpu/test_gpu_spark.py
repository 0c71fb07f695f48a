"""GPUs that Spark hands out: a real cluster, discovery scripts, no devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suite.waiting import LONGEST

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("on_gpus") / "driver.py"
HOSTS = ({"0", "1"}, {"2", "3"})


@pytest.fixture(scope="module")
def seen(scratch):
    """Run all jobs once; give what their tasks saw."""
    done = subprocess.run(
        [sys.executable, str(DRIVER)],
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def addresses(job, role="worker"):
    """Return what was given to the tasks of a role, after a look at the variable."""
    tasks = {name: each for name, each in job.items() if name.startswith(role)}
    for each in tasks.values():
        assert each["visible"] == (",".join(each["gpus"]) or "-1")
    return [each["gpus"] for each in tasks.values()]


def test_by_default_each_task_has_what_spark_gives_it(seen):
    given = addresses(seen["by default"])
    assert [len(each) for each in given] == [1, 1, 1]
    assert len({each[0] for each in given}) == 3


@pytest.mark.parametrize("job", ["two each", "fed", "evaluator", "ps"])
def test_a_profile_gets_each_worker_all_of_its_own(seen, job):
    given = [set(each) for each in addresses(seen[job])]
    assert sorted(given, key=min) == list(HOSTS)


@pytest.mark.parametrize(("job", "role", "tasks"), [("ps", "ps", 1), ("evaluator", "evaluator", 1)])
def test_servers_and_evaluators_run_beside_them_without_any(seen, job, role, tasks):
    assert addresses(seen[job], role) == [[]] * tasks


def test_parts_are_shared_by_no_more_than_may(seen):
    given = [each[0] for each in addresses(seen["parts"])]
    assert len(given) == 6
    assert max(given.count(address) for address in given) <= 2


def test_a_reused_python_worker_leaves_nothing_stale(seen):
    assert addresses(seen["stale"]) == [[], []]


def test_more_than_an_executor_has_is_an_error(seen):
    assert seen["three"]["error"] == "NotEnoughGpus"
    assert "needs 3 GPUs, but each executor has 2" in seen["three"]["text"]
    assert seen["three"]["numbers"] == [3, 2]


def test_more_than_all_executors_have_is_an_error(seen):
    assert seen["five"]["error"] == "NotEnoughGpus"
    assert "need 5 GPUs, but the application has 4" in seen["five"]["text"]
    assert seen["five"]["numbers"] == [5, 4]


def test_tasks_without_gpus_still_need_slots(seen):
    assert seen["slots"]["error"] == "NotEnoughSlots"
    assert seen["slots"]["numbers"] == [7, 6]


def test_util_tells_what_the_session_is_configured_with(seen):
    assert seen["util"] == [2, 2]
