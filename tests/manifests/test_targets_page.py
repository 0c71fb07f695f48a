"""What docs/job-files.md and docs/targets.md say of the commands and the targets holds."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys

import pytest
import test_meanings
import yaml
from jobs import ROOT

from gridflow.cli import main, make_parser
from gridflow.deploy import TARGETS, explain, get_target, load_job, render

PAGES = ("job-files.md", "targets.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL))
#: The tests of the columns of the table of meanings, by how their names begin.
COLUMNS = (
    "test_restart_policy",
    "test_restart_limit",
    "test_deadline",
    "test_clean_up",
    "test_secrets",
    "test_evaluator",
)
#: The commands whose work ends in this process: they are run as they stand.
PURE = ("targets", "init", "explain", "render", "validate")


def pipelines():
    """Every pipeline with gridflow in it, in blocks and in running text."""
    lines = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
    lines += [text for text in re.findall(r"`(gridflow [^`]*)`", PAGE) if is_whole(text)]
    return [line for line in lines if line.startswith("gridflow ")]


def is_whole(text):
    """Tell a command from a name of one, like ``gridflow render -t TARGET job.yaml``."""
    return not re.search(r"[A-Z]{4}|…|\[", text) and "job.yaml" not in text and " -" in text


def commands():
    for line in pipelines():
        yield [shlex.split(part) for part in line.split(" | ")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of what the page's commands read, as the current directory."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    hello = next(text for kind, text in BLOCKS if kind == "yaml")
    (tmp_path / "hello.yaml").write_text(hello)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_target_has_a_section():
    assert [name for name in SECTIONS if name != "spark"] == list(TARGETS)


def refused(target):
    """The features that a target can't express; the first word alone where that is all of it."""
    groups = {}
    for row in explain(target):
        groups.setdefault(re.split("[.=]", row.feature)[0], []).append(row)
    for first, rows in groups.items():
        no = [row.feature for row in rows if row.how == "no"]
        yield from [first] if len(no) == len(rows) else no


@pytest.mark.parametrize("target", TARGETS)
def test_a_section_lists_what_the_target_cannot_express(target):
    words = ", ".join(f"`{name}`" for name in refused(target)) or "nothing"
    assert f"Can't express: {words}." in SECTIONS[target]


@pytest.mark.parametrize("target", TARGETS)
def test_a_section_says_what_is_needed_and_how_it_is_done(target):
    assert "Needs: " in SECTIONS[target]
    assert f"-t {target} " in SECTIONS[target]


def test_each_cell_of_the_table_of_meanings_has_its_test():
    """The columns are test functions of test_meanings.py, with a case for each target."""
    rows = re.findall(r"^\| `([\w-]+)`(?: \(script\))? \|(.*)\|$", PAGE, re.MULTILINE)
    cells = {name: row.split("|") for name, row in rows if row.count("|") == 5}
    trains = [name for name in TARGETS if "command" in get_target(name).needs]
    assert list(cells) == trains
    titles = re.search(r"^\| target \|(.*)\|$", PAGE, re.MULTILINE).group(1).split("|")
    for title, column in zip(titles, COLUMNS, strict=True):
        assert title.strip(" `").split(".")[0] in column
        tests = [getattr(test_meanings, n) for n in dir(test_meanings) if n.startswith(column)]
        marks = [mark for test in tests for mark in getattr(test, "pytestmark", ())]
        assert sorted(name for mark in marks for name in mark.args[1]) == sorted(trains), column


def test_every_command_on_the_page_is_one_of_ours_and_its_job_renders(folder, capsys, monkeypatch):
    seen = set()
    for pipeline in commands():
        text = None
        for words in pipeline:
            if words[0] != "gridflow":
                break
            seen.add(words[1])
            arguments = make_parser().parse_args(words[1:])
            if arguments.subcommand in PURE:
                monkeypatch.setattr(sys, "stdin", io.StringIO(text))
                assert main(words[1:]) == 0, words
                text = capsys.readouterr().out
            else:
                job = load_job(folder / arguments.job, arguments.assignments)
                place = arguments.target.replace("spark", "spark-submit-standalone", 1)
                place = arguments.target if arguments.target in TARGETS else place
                assert render(job, place, lossy=arguments.lossy).documents, words
    assert seen >= {*PURE, "run", "status", "logs", "cancel"}


@pytest.mark.slow
def test_the_first_job_runs_on_this_machine(folder):
    words = [sys.executable, "-m", "gridflow.cli", "run", "-t", "local", "hello.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for index in range(2):
        assert re.search(rf'hello, .*"type": "worker", "index": {index}', done.stdout)


def test_yaml_and_python_on_the_page_are_right(folder):
    for kind, text in BLOCKS:
        if kind == "yaml":
            assert yaml.safe_load(text)
        if kind == "python":
            compile(text, "job-files.md", "exec")
    first = next(text for kind, text in BLOCKS if kind == "python")
    done = subprocess.run([sys.executable, "-c", first], capture_output=True, text=True, check=True)
    assert "kind: Job" in done.stdout


def test_settings_in_the_text_are_fields_of_the_job(folder):
    """Inline pieces of job.yaml, like ``marathon: {finished_dir: /data/finished}``."""
    pieces = re.findall(r"`((?:spark|marathon): \{[^`]*\})`", PAGE)
    assert len(pieces) >= 4
    for piece in pieces:
        (folder / "job.yaml").write_text(f"name: flights\n{piece}\n")
        load_job(folder / "job.yaml")
