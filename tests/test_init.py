"""``gridflow init``: what it asks in a terminal, and what it makes of the answers."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from gridflow._spec.exits import Exit
from gridflow.cli import main
from gridflow.deploy import load_job, parse_job, render
from gridflow.deploy.asking import QUESTIONS, TEMPLATE, TRAINING_TARGETS
from gridflow.deploy.distributed import DRIVEN
from suite.waiting import patience

PROMPT = re.compile(r"\[([^\]]*)\]: \Z")


class Terminal:
    """A real terminal in which the command runs; `answer` types a line once it is asked."""

    def __init__(self, *words, cwd, **options):
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gridflow.cli", "init", *words],
            **{"stdin": theirs, "stdout": theirs, "stderr": theirs, **options},
            cwd=cwd,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def asked(self):
        """Wait for a question; return it."""
        new = ""
        while not PROMPT.search(new):
            new += os.read(self._ours, 4096).decode()
        self.seen += new
        return new.splitlines()[-1]

    def type(self, text):
        os.write(self._ours, text.encode())

    def answer(self, question, line):
        asked = self.asked()
        assert question in asked
        self.type(line + "\n")

    def end(self):
        """Return the exit code once all that was printed is read."""
        try:
            while piece := os.read(self._ours, 4096):
                self.seen += piece.decode()
        except OSError:  # Linux reports the end of a terminal so
            pass
        return self.process.wait(patience())


def test_enter_accepts_each_default(tmp_path):
    with Terminal("job.yaml", cwd=tmp_path) as terminal:
        for _ in range(len(QUESTIONS) - 1):  # a job on this machine needs no image
            terminal.answer("", "")
        assert terminal.end() == 0
    assert "start it with: gridflow run -t local job.yaml" in terminal.seen
    job = load_job(tmp_path / "job.yaml")
    assert (job.name, job.command) == ("train", ("python", "train.py"))
    assert {name: role.replicas for name, role in job.roles.items()} == {"worker": 2}


def test_answers_are_what_the_job_says_and_a_bad_one_is_asked_for_again(tmp_path):
    with Terminal(cwd=tmp_path) as terminal:
        terminal.answer("Where it runs", "kubernets")
        terminal.answer("Where it runs", "kubernetes")
        terminal.answer("Name of the job [train]", "Flights_1")
        terminal.answer("Name of the job", "flights")
        terminal.answer("Program of each task", "python '/app/my train.py'")
        terminal.answer("Image with the program [registry.example/acme/flights:1.0]", "")
        terminal.answer("Workers", "0")
        terminal.answer("Workers", "3")
        terminal.answer("GPUs", "1")
        terminal.answer("Keras backend", "")
        terminal.answer("Parameter servers", "2")
        terminal.answer("Data", "pvc:flights-data")
        terminal.answer("File [job.yaml]", "")
        assert terminal.end() == 0
    for words in ("Did you mean 'kubernetes'?", "not a DNS label", "must be at least 1"):
        assert words in terminal.seen
    job = load_job(tmp_path / "job.yaml")
    assert job.command == ("python", "/app/my train.py")
    assert {name: role.replicas for name, role in job.roles.items()} == {
        "chief": 1,
        "worker": 3,
        "ps": 2,
    }
    assert job.roles["worker"].resources.gpu == 1
    assert (job.env, job.volumes[0].pvc) == ({"DATA": "/data"}, "flights-data")
    assert render(job, "kubernetes").documents


def test_what_the_target_cant_express_is_asked_for_again(tmp_path):
    words = [f"--{q.name}={q.default}" for q in QUESTIONS if q.name not in {"image", "data"}]
    with Terminal("job.yaml", *words, cwd=tmp_path) as terminal:
        terminal.answer("Data", "pvc:flights")
        terminal.answer("Data", "/data/flights")
        assert terminal.end() == 0
    assert "the target local can't express it" in terminal.seen
    assert load_job(tmp_path / "job.yaml").env == {"DATA": "/data/flights"}


def test_an_existing_file_is_refused_before_anything_is_asked(tmp_path):
    (tmp_path / "job.yaml").write_text("mine")
    with Terminal("job.yaml", cwd=tmp_path) as terminal:
        assert terminal.end() == Exit.USAGE
    assert "File exists" in terminal.seen
    assert (tmp_path / "job.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("key", "code", "words"),
    [("\x04", Exit.USAGE, "the input has ended, so nothing"), ("\x03", Exit.INTERRUPTED, "inter")],
    ids=["Ctrl-D", "Ctrl-C"],
)
def test_who_leaves_gets_no_file(tmp_path, key, code, words):
    # Ctrl-C is for the processes of the terminal's own session.
    with Terminal("job.yaml", cwd=tmp_path, preexec_fn=own_terminal) as terminal:
        terminal.answer("Where it runs", "")
        terminal.asked()
        terminal.type(key)
        assert terminal.end() == code
    assert words in terminal.seen
    assert list(tmp_path.iterdir()) == []


def own_terminal():
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_questions_leave_standard_output_to_the_job(tmp_path):
    words = [
        f"--{question.name}={question.default}"
        for question in QUESTIONS[2:]
        if question.name != "image"
    ]
    with Terminal(*words, cwd=tmp_path, stdout=subprocess.PIPE) as terminal:
        terminal.answer("Where it runs", "")
        terminal.answer("Name of the job", "mine")
        out = terminal.process.stdout.read().decode()
        terminal.process.stdout.close()
        assert terminal.end() == 0
    assert parse_job(out).name == "mine"


def test_without_a_terminal_nothing_is_asked(capsys):
    assert main(["init"]) == 0
    assert capsys.readouterr().out == TEMPLATE
    assert main(["init", "--workers", "4", "--backend", "jax"]) == 0
    job = parse_job(capsys.readouterr().out)
    assert (job.roles["worker"].replicas, job.env) == (4, {"KERAS_BACKEND": "jax"})


@pytest.mark.parametrize("target", TRAINING_TARGETS)
def test_the_defaults_of_every_target_render(target, capsys):
    assert main(["init", "--target", target, "--data", "s3://bucket/rows"]) == 0
    job = parse_job(capsys.readouterr().out)
    assert render(job, DRIVEN.get(target, target)).documents


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--target", "serving"], "--target: no job trains on 'serving'"),
        (
            ["--workers", "two"],
            "--workers: must be a whole number of up to nine digits, got 'two'.",
        ),
        (["--ps", "9" * 5000], "--ps: must be a whole number of up to nine digits"),
        (["--workers", "10001"], "--workers: must be at most 10,000, got 10001."),
        (["--workers", "-1"], "--workers: must be a whole number"),
        (["--backend", "mxnet"], "--backend: must be one of tensorflow, jax, torch"),
        (["--backend", "jax", "--ps", "2"], "--ps: parameter servers need the backend tensorflow"),
        (["--program", " "], "--program: must not be empty."),
        (["--target", "kubernetes", "--image", ""], "--image: must not be empty."),
        (["--program", "python '"], "--program: No closing quotation."),
        (["--program", "train --token=s3cr3t"], "--program: --token looks like a secret"),
        (["--target", "compose", "--data", "rows"], "--data: a path in the container must begin"),
        (["--target", "marathon", "--data", "pvc:x"], "--data: the target marathon can't express"),
    ],
)
def test_a_bad_option_is_refused(words, reason, capsys):
    assert main(["init", *words]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert (out, reason in err) == ("", True)
