"""The pages for each kind of user: short, and what they tell to do first is done here."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from documents import ROOT, python_blocks, run_as_a_user, users_environment

from suite.waiting import LONGEST

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("for-*.md"))


def text(page):
    return (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")


def shell_blocks(page):
    return re.findall(r"^```sh\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


def shell(script, folder):
    """Run a page's commands as a user whose environment is active; stop at the first that fails."""
    commands = os.path.dirname(sys.executable)
    environment = users_environment()
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**environment, "PATH": f"{commands}{os.pathsep}{environment['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST,
    )


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_answers_the_same_questions(page):
    assert len(text(page).split()) <= 500
    headings = re.findall(r"^## (.*)$", text(page), re.MULTILINE)
    assert headings == ["Do this first", "What you will stumble over", "Read next"]
    steps = re.findall(r"^\*\*(\d)\. ", text(page), re.MULTILINE)
    assert steps == ["1", "2", "3"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_a_spark_engineer_plans_trains_and_predicts_in_sql(tmp_path):
    output = run_as_a_user(
        sys.executable, "\n".join(python_blocks("docs/for-spark-engineers.md")), tmp_path
    )
    assert "spark (local-cluster[2,1,2048])" in output
    assert re.search(r"\| *km\| *hour\| *predicted\|", output)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_a_keras_user_trains_in_two_processes_without_spark(tmp_path):
    code = "\n".join(python_blocks("docs/for-keras-users.md"))
    output = run_as_a_user(sys.executable, code, tmp_path)
    errors = [float(each) for each in re.search(r"^\[(.*)\]$", output, re.MULTILINE)[1].split(",")]
    assert errors[-1] < errors[0] / 2
    assert (tmp_path / "sum.keras").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_an_old_program_runs_as_it_is_and_the_new_one_predicts(tmp_path):
    old, new = python_blocks("docs/for-tensorflowonspark-users.md")
    (tmp_path / "old.py").write_text(old, encoding="utf-8")
    (command,) = shell_blocks("for-tensorflowonspark-users")
    done = shell(command, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr[-5000:]
    assert "prediction|" in run_as_a_user(sys.executable, new, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leaks")
def test_an_operator_checks_a_cluster_renders_a_job_and_reads_how_one_ended(tmp_path):
    doctor, jobs = shell_blocks("for-platform-operators")
    for command in doctor.splitlines():
        looked = shell(command, tmp_path)
        assert looked.returncode in (0, 1), looked.stderr  # what it finds depends on this machine
    assert "to the driver" in looked.stdout
    done = shell(jobs, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kind: Job" in (tmp_path / "job.k8s.yaml").read_text(encoding="utf-8")
    (code,) = python_blocks("docs/for-platform-operators.md")
    assert run_as_a_user(sys.executable, code, tmp_path).splitlines()[-1] == "succeeded"
