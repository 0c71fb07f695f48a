"""Exit codes: one for each kind of end, and the message that Kubernetes shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from gridflow import errors, exit_code
from gridflow._coordinator.policies import to_error
from gridflow._spec import exits
from gridflow._spec.exits import KINDS, Exit, kind_of
from gridflow._wire.failures import FailureKind, TaskFailure
from suite.waiting import patience

PAGE = Path(__file__).parents[1] / "docs" / "outcomes.md"


def failed(kind="exception", error=errors.TrainingFailed, code=None):
    return error("said", (TaskFailure("worker:1", "host", kind, "said", exit_code=code),))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (ValueError(), 1),
        (errors.GridflowError(), 1),
        (errors.InvalidArgument(), 64),
        (errors.UnpicklableFunction(), 64),
        (errors.SchemaError(), 65),
        (errors.DataError(""), 65),
        (failed(), 70),
        (failed("exit", code=3), 70),
        (errors.TrainingFailed("no task is known"), 70),
        (errors.NetworkError(), 71),
        (errors.JobExists(), 73),
        (errors.UnsafePath(), 77),
        (errors.MissingDependency(), 78),
        (errors.EnvironmentMismatch(""), 78),
        (errors.RunTimeout(""), 124),
        (errors.JobCancelled(), 130),
        (KeyboardInterrupt(), 130),
        (failed("lost", errors.TaskLost), 197),
        (failed("signal"), 198),
        (failed("stopped"), 198),
        (failed("exit", code=143), 198),
        (errors.NotEnoughSlots(""), 199),
        (errors.NotEnoughGpus(""), 199),
        (errors.StepTimeout(""), 202),
        (errors.StartTimeout(""), 203),
    ],
)
def test_an_error_has_the_code_that_it_has_always_had(error, code):
    assert exit_code(error) == code


def test_the_table_has_a_row_for_each_kind_of_failure_and_its_error_ends_with_its_code():
    assert set(KINDS) == set(get_args(FailureKind))
    for kind, row in KINDS.items():
        assert exit_code(to_error(failed(kind).failures)) == row.exit, kind
        assert type(to_error(failed(kind).failures)) is row.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.SchemaError(), "data"),
        (errors.DataError(""), "data"),
        (errors.EnvironmentMismatch(""), "environment"),
        (errors.TaskLost(""), None),
        (ValueError(), None),
    ],
)
def test_what_the_function_raises_may_be_a_failure_of_another_kind_than_an_exception(error, kind):
    assert kind_of(error) == kind


def test_every_public_error_that_ends_a_job_has_a_code_of_its_kind():
    general = {"GridflowError", "WireError", "TrainingFailed"}
    general |= {"BrokenBarrier", "BarrierTimeout"}  # of tasks, whose failure ends it
    for name in errors.__all__:
        error = getattr(errors, name)
        if isinstance(error, type) and name not in general:
            assert exit_code(error.__new__(error)) != Exit.OTHER, name


def test_the_page_lists_every_code_and_no_other():
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(int(e), e.name) for e in Exit]


def test_from_128_on_another_try_may_succeed():
    assert {e for e in Exit if e.is_retryable} == {
        *(Exit.INTERRUPTED, Exit.BROKEN_PIPE, Exit.LOST, Exit.KILLED),
        *(Exit.SLOTS, Exit.STUCK, Exit.TRY_AGAIN),
    }


def run(code, tmp_path):
    place = tmp_path / "termination-log"
    place.touch()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"GRIDFLOW_TERMINATION_LOG": str(place), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )
    return done, place.read_text()


def test_a_script_ends_with_the_code_and_tells_kubernetes_why(tmp_path):
    code = (
        "import atexit, gridflow\n"
        "atexit.register(print, 'cleaned up')\n"
        "with gridflow.exit_codes():\n"
        "    raise gridflow.NotEnoughSlots('2 tasks, 1 slot')\n"
    )
    done, message = run(code, tmp_path)
    assert done.returncode == 199
    assert done.stdout == "cleaned up\n"
    assert "Traceback" in done.stderr
    assert "2 tasks, 1 slot" in done.stderr
    assert message == "NotEnoughSlots: 2 tasks, 1 slot"


@pytest.mark.parametrize(("error", "code"), [("ValueError('mine')", 1), ("SystemExit(5)", 5)])
def test_what_is_not_gridflows_passes_a_script_as_it_is(tmp_path, error, code):
    done, message = run(
        f"import gridflow\nwith gridflow.exit_codes():\n    raise {error}", tmp_path
    )
    assert (done.returncode, message) == (code, "")


def test_a_long_message_keeps_its_beginning_and_its_end(tmp_path, monkeypatch):
    place = tmp_path / "log"
    monkeypatch.setenv("GRIDFLOW_TERMINATION_LOG", str(place))
    exits.leave_message("nobody reads it, so nothing is made")
    assert not place.exists()
    place.touch()
    exits.leave_message("worker:1 failed\n" + "ö" * 5000 + "\nno such file")
    assert len(place.read_bytes()) <= 4096
    text = place.read_text(encoding="utf-8")
    assert text.startswith("worker:1 failed\n")
    assert "\n…\n" in text
    assert text.endswith("ö\nno such file")


@pytest.mark.slow
def test_spark_submit_ends_with_the_code_of_the_script(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import gridflow\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "with gridflow.exit_codes():\n"
        "    gridflow.TensorflowDistributor(2, 'none').run(print)\n"
    )
    bin_folder = str(Path(sys.executable).parent)  # not resolved: it is that of the environment
    words = ["spark-submit", "--master=local[1]", "--conf=spark.ui.enabled=false", str(script)]
    done = subprocess.run(
        words,
        env={**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(),
    )
    assert done.returncode == 199, done.stdout + done.stderr
    assert "NotEnoughSlots" in done.stdout  # where spark-submit puts all that a script prints
