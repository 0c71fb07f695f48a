"""What a notebook shows of jobs and their results: HTML in which nothing of others is markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gridflow import Result, TrainingFailed
from gridflow._coordinator import views
from gridflow._coordinator.progress import JobReport, TaskProgress, histories
from gridflow._coordinator.record import Outcome
from gridflow._feed.ledger import Ledger
from gridflow._spec import markup
from gridflow._spec.cluster import Task
from gridflow._spec.markup import learning_curves
from gridflow._spec.place import Place
from gridflow._wire.failures import Attempt, TaskFailure

TASKS = [Task("worker", 0), Task("worker", 1), Task("dispatcher", 0)]
EVIL = "<script>alert('x')</script> \x1b[31mred\x1b[0m & \x9b2J"
FAILURE = TaskFailure(
    "worker:1", "host-7", "exception", f"ValueError: {EVIL}", traceback=f"Traceback …\n{EVIL}"
)


class Page(HTMLParser):
    """The tags and the text of some HTML."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def check(content):
    """Return a page that is whole, and in which nothing of others is markup or moves a cursor."""
    page = Page(content)
    assert page.open == []
    assert "script" not in {tag for tag, _ in page.tags}
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", content)
    return page


def report(**changes):
    place = Place(0, 2, 7)
    progress = TaskProgress(place, 1_000, "train", {"loss": 0.25, EVIL: float("nan")})
    fields = {
        "state": "training",
        "generation": 1,
        "tasks": {"worker:0": progress},
        "epochs": 2,
        "history": {"loss": [1.0, 0.5], "val_loss": [1.5, 0.75], EVIL: [2.0, 2.0]},
        "failures": (FAILURE,),
        "tensorboard_url": None,
    }
    return JobReport(**{**fields, **changes})


def test_a_running_job_shows_each_task_the_losses_and_what_failed_before():
    page = check(views.report_view(report(), f"job-{EVIL}", TASKS))
    for words in ("training", "2 complete", "worker:0", "7 of 1,000", "0.25", "no step yet"):
        assert words in page.text
    assert "generation 0: worker:1: ValueError: <script>alert('x')</script> red & " in page.text
    assert "Traceback of the task" in page.text
    assert [tag for tag, _ in page.tags].count("svg") == 2  # the loss, and a metric


def test_a_job_without_a_step_shows_its_tasks():
    nothing = report(tasks={}, epochs=0, generation=0, history={}, failures=())
    page = check(views.report_view(nothing, "job", TASKS))
    assert page.text.count("no step yet") == 2
    assert "dispatcher" not in page.text
    assert "generation" not in page.text


def test_an_error_is_shown_with_its_cause():
    page = check(views.error_view(TrainingFailed(FAILURE.describe(), (FAILURE,))))
    assert "TrainingFailed: worker:1 on host-7: ValueError: " in page.text
    assert "Traceback of the task" in page.text
    assert "TrainingFailed: " in check(views.error_view(TrainingFailed(""))).text


def test_a_result_shows_what_ended_each_attempt(tmp_path):
    attempts = (Attempt(0, 12.5, FAILURE), Attempt(1, 30.0, None, Place(0, 1, 0)))
    history = {(0, epoch): {"loss": 1 / (epoch + 1)} for epoch in range(3)}
    results = ({"kind": "model", "class": EVIL}, {"kind": "none"})
    outcome = Outcome(results, history, Ledger(), attempts, {}, None, {})
    page = check(Result(outcome, tmp_path)._repr_html_())
    for words in ("balanced", "12.5 s", "epoch 1, step 0", "the beginning", "0.333333"):
        assert words in page.text
    assert str(Path(tmp_path)) in page.text
    one = Outcome(results, {}, Ledger(), (Attempt(0, 1.0),), {}, None, {})
    assert "started from" not in check(Result(one, tmp_path)._repr_html_()).text


def places(svg):
    """Return the points of each line."""
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}polyline")
    ]


def test_a_curve_goes_down_with_the_loss_and_leaves_gaps_where_there_is_no_number():
    whole, broken = places(
        learning_curves({"loss": [4.0, 2.0, 1.0], "val_loss": [4.0, float("inf"), 1.0]})
    )[:2]
    assert [x for x, _ in whole] == sorted(x for x, _ in whole)
    assert [y for _, y in whole] == sorted(y for _, y in whole)  # SVG counts from the top
    assert broken == whole[:1]
    for x, y in whole:
        assert 0 < x < 300
        assert 0 < y < 180


@pytest.mark.parametrize(
    "history",
    [{}, {"loss": []}, {"loss": [float("nan")]}],
)
def test_no_curve_is_drawn_of_nothing(history):
    assert learning_curves(history) == ""


def test_a_long_curve_has_its_ends_and_not_too_many_points():
    (line,) = places(learning_curves({"loss": [float(n) for n in range(100_000)]}))
    assert 300 <= len(line) <= 302
    assert (line[0][0], line[-1][0]) == (60, 286)
    (flat,) = places(learning_curves({"loss": [0.5]}))
    assert flat == [(173, 99)]


def test_epochs_are_put_together_by_fit():
    epochs = {(1, 0): {"a": 3.0}, (0, 1): {"a": 2.0, "b": 5.0}, (0, 0): {"a": 1.0}}
    assert histories(epochs) == [{"a": [1.0, 2.0], "b": [5.0]}, {"a": [3.0]}]


def test_a_text_is_folded_and_escaped():
    page = check(markup.text(EVIL, EVIL))
    assert page.text.count("red & ") == 2
