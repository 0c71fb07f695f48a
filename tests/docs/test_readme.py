"""The programs of the README and other pages, run as a user who pastes them would."""

from __future__ import annotations

import json
import re
import sys

import pytest
from documents import (
    check_what_the_readme_promises,
    python_blocks,
    run,
    run_as_a_user,
    without_javas,
)

QUIET = """
from pyspark.sql import SparkSession
from gridflow.util import quiet

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
with quiet(builder).getOrCreate() as spark:
    log = spark._jvm.org.apache.logging.log4j.LogManager.getLogger("somebody.Else")
    log.warn("a warning")
    log.error("an error")
"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leaks")]


def test_the_script_of_the_readme_trains_and_predicts(tmp_path):
    check_what_the_readme_promises(sys.executable, tmp_path)


def test_a_quiet_session_shows_errors_and_nothing_else(tmp_path):
    done = run(sys.executable, QUIET, tmp_path)
    shown = without_javas(done.stderr)
    assert [line.split(" ", 2)[2] for line in shown] == ["ERROR Else: an error"]
    assert (done.returncode, done.stdout) == (0, "")


def test_the_script_of_the_readme_ends_with_its_error_and_not_with_sparks(tmp_path):
    (script,) = python_blocks("README.md")
    failing = script.replace("    import keras\n", "    raise ValueError('no such luck')\n", 1)
    assert failing != script
    done = run(sys.executable, failing, tmp_path)
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stderr
    assert "at org.apache.spark" not in done.stderr[done.stderr.index("Traceback") :]


def test_the_program_of_the_steps_does_what_it_says(tmp_path):
    program = "\n".join(python_blocks("docs/step-by-step.md"))
    output = run_as_a_user(sys.executable, program, tmp_path)
    assert "spark (local-cluster[2,1,2048])" in output
    assert "\n[]\n" in output  # the ledger balances
    assert "+----" in output  # the table of predictions
    (loss,) = re.findall(r"^own loop: (.*)$", output, re.MULTILINE)
    assert float(loss) < 0.5
    assert (tmp_path / "model.keras").is_file()


def test_the_programs_of_the_page_on_failure_show_a_failure(tmp_path):
    program = "\n".join(python_blocks("docs/failure.md"))
    output = run_as_a_user(sys.executable, program, tmp_path)
    assert "exception the function raised ValueError: no such luck" in output
    (losses,) = re.findall(r"^losses: (.*)$", output, re.MULTILINE)
    first, _, last = json.loads(losses)
    assert 0 < last < first


def test_the_program_of_the_page_on_observers_tells_how_a_job_goes(tmp_path):
    program = "\n".join(python_blocks("docs/observers.md"))
    output = run_as_a_user(sys.executable, program, tmp_path)
    assert "worker:0: step 1: {'loss': 1.0}" in output
    assert re.search(r"^succeeded after \d+ s$", output, re.MULTILINE)


def test_the_program_of_the_page_on_spark_ml_saves_a_pipeline(tmp_path):
    (program,) = python_blocks("docs/spark-ml.md")
    assert len([line for line in program.splitlines() if line.strip()]) <= 32
    output = run_as_a_user(sys.executable, program, tmp_path)
    (error,) = re.findall(r"^rmse (.*)$", output, re.MULTILINE)
    assert float(error) < 0.5
    assert "prediction|" in output
    assert len(list(tmp_path.glob("house-prices/stages/2_*/model.keras"))) == 1
