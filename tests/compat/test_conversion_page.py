"""The snippets of docs/conversion.md run, and no conversion takes more than ten lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "conversion.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def snippets():
    """Give what the page's Python blocks define, all in one namespace."""
    namespace = {"__name__": "conversion"}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/conversion.md", "exec"), namespace)
    return namespace


def test_each_conversion_changes_fewer_than_ten_lines():
    blocks = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        new = [line for line in block.splitlines() if line.startswith("+") and line != "+"]
        old = [line for line in block.splitlines() if line.startswith("-")]
        assert max(len(new), len(old)) < 10, block


@pytest.mark.slow
def test_a_plain_program_trains(snippets):
    (kernel, _) = snippets["plain"]().model.load().get_weights()
    assert kernel.shape == (1, 1)


@pytest.mark.slow
def test_an_old_program_with_a_strategy_of_its_own_runs_as_it_is(snippets):
    assert list(snippets["tutorial"]().values) == [2, 2]


@pytest.mark.slow
def test_programs_fed_by_arrays_train(snippets):
    assert len(snippets["arrays"]().history["loss"]) == 2


@pytest.mark.slow
def test_tasks_know_who_they_are(snippets):
    assert snippets["habits"]() == ["worker 0 of 2", "worker 1 of 2"]


def test_hops_helpers_answer_from_sparks_settings(snippets, spark):
    executors, servers, path = snippets["layout"]()
    assert (executors, servers) == (2, 0)
    assert path.startswith("file:///user/")
    assert path.endswith("/Resources/data")
