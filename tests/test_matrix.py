"""The plan and the page of ``make matrix``, without its environments."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import matrix

#: What excludes what in a world for the tests, as levels that don't go together.
RULES = {
    "nothing": [],
    "a pair": [{("Python", "3.11"), ("JAX", "0.12")}],
    "three": [{("Python", "3.13"), ("Spark", "4.0.5"), ("numpy", "2.4 or later")}],
    "a level": [{("TensorFlow", "nightly")}],
    "a pair without a rest": [
        {("Keras", "nightly"), ("pandas", "3"), ("pyarrow", each)}
        for each in matrix.AXES["pyarrow"]
    ],
}


def pairs():
    levels = [(axis, level) for axis in matrix.AXES for level in matrix.AXES[axis]]
    return {(one, two) for one, two in itertools.combinations(levels, 2) if one[0] != two[0]}


@pytest.fixture(params=RULES)
def excluded(request, monkeypatch):
    rules = RULES[request.param]

    def hole(levels):
        assert "Python" in dict(levels)
        return next(("that's why" for rule in rules if rule <= set(levels)), None)

    monkeypatch.setattr(matrix, "hole", hole)
    return rules


def test_every_pair_is_tried_or_named_with_its_reason(excluded):
    rows, holes = matrix.plan()
    tried = set()
    for row in rows:
        assert [axis for axis, _ in row] == list(matrix.AXES)
        assert not any(rule <= set(row) for rule in excluded)
        tried |= set(itertools.combinations(row, 2))
    named = {pair for pair, _ in holes}
    assert tried | named == pairs()
    assert not tried & named
    # What a rule excludes by itself has its reason, and no other pair is given up.
    two = {frozenset(rule) for rule in excluded if len(rule) == 2}
    assert {frozenset(pair) for pair, why in holes if why == "that's why"} >= two
    if not excluded:
        assert not holes
    # Twelve are the fewest: each Spark with each Python.
    assert len(rows) <= 18


def test_a_pair_that_only_the_rest_excludes_is_named_too(monkeypatch):
    def hole(levels):
        pair = {("Keras", "nightly"), ("pandas", "3")}
        return "no pyarrow fits" if pair <= set(levels) and "pyarrow" in dict(levels) else None

    monkeypatch.setattr(matrix, "hole", hole)
    _, holes = matrix.plan()
    assert ((("Keras", "nightly"), ("pandas", "3")), "nothing else fits both") in holes


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "error: No\n  cause: Because you have 3.11\nand jax needs 3.12, we can conclude that …",
            "you have 3.11 and jax needs 3.12",
        ),
        ("Because numpy>=2.5 has no usable wheels. And because", "numpy>=2.5 has no usable wheels"),
        ("error: a | b", "error: a / b"),
    ],
)
def test_the_first_cause_is_taken_from_what_uv_says(said, expected):
    assert matrix.reason(said) == expected


def test_the_page_says_what_passed_what_failed_and_what_cannot_be_had(tmp_path, monkeypatch):
    page = tmp_path / "versions.md"
    page.write_text(f"before\n{matrix.BEGIN}\nold\n{matrix.END}\nafter\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    row = [(axis, next(iter(levels))) for axis, levels in matrix.AXES.items()]
    versions = {"Python": "3.11.9", "keras-nightly": "3.16.0.dev1"}
    good = {"levels": row, "versions": versions, "passed": {"job": "", "feed": ""}, "failed": {}}
    bad = {**good, "passed": {"job": ""}, "failed": {"feed": "Error: a | b\ntraceback"}}
    matrix.write([good, bad], [((("Python", "3.11"), ("JAX", "0.12")), "no package")])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| 3.11.9 | 4.0.5 | 2.21 | 3.16.0.dev1 |" in text
    assert "| all 2 pass |" in text
    assert "| feed fails: Error: a / b |" in text
    assert "| Python 3.11 | JAX 0.12 | no package |" in text
