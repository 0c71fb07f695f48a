"""Every cell of the conformance table."""

from __future__ import annotations

import pytest

from gridflow.testing import conformance
from gridflow.testing.cases import DATA_CASES, MODELS

CASES = ("fit", "evaluate", "predict", "checkpoint and resume", "save", "custom loop")
CELLS = [(case, model) for model in MODELS for case in CASES]
CELLS += [(case, MODELS[0]) for case in DATA_CASES]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return conformance.run_plain(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module", params=["local", "spark"])
def outcomes(request, expected, tmp_path_factory):
    directory = tmp_path_factory.mktemp("columns")
    if request.param == "local":
        return conformance.run_table(expected, directory, at_once=2)
    return conformance.run_table(expected, directory, request.getfixturevalue("spark"))


@pytest.mark.timeout(900)  # the first test on each launcher computes the whole table
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
@pytest.mark.parametrize("strategy", conformance.STRATEGIES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: ", ".join(cell))
def test_it_computes_what_one_process_computes(outcomes, cell, strategy, flavour):
    outcome = outcomes[strategy, flavour][cell]
    assert outcome.passed, f"{cell}: {outcome}"
    if cell[1] != MODELS[-1]:
        assert not outcome.by_loss


def test_the_table_has_a_row_for_each_cell(outcomes):
    lines = conformance.table(outcomes).splitlines()
    assert len(lines) == 2 + len(CELLS)
    assert all(f"{s} {f}" in lines[0] for s, f in outcomes)
