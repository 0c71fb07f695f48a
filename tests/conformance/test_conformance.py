"""Every cell of the conformance table, and on Spark those of several workers."""

from __future__ import annotations

import pytest

from gridflow.testing import asynchronous, conformance, uneven
from gridflow.testing.cases import DATA_CASES, MODELS, TENSORFLOW_CASES, TENSORFLOW_MODELS
from gridflow.testing.step_cases import STEP_CASES, cases_of
from suite.schedule import made_once

pytestmark = pytest.mark.slow

CASES = ("fit", "evaluate", "predict", "checkpoint and resume", "save", "custom loop")
CELLS = [(case, model) for model in MODELS for case in CASES]
CELLS += [(case, MODELS[0]) for case in (*DATA_CASES, *uneven.CASES)]
#: Optimizers, losses and steps that aren't the usual ones.
STEP_CELLS = [
    (flavour, (case, MODELS[0])) for flavour in conformance.FLAVOURS for case in cases_of(flavour)
]
#: The same for Keras 3 on JAX and torch.
BACKEND_CELLS = [
    (case, model)
    for case, model in CELLS
    if case not in TENSORFLOW_CASES and model not in TENSORFLOW_MODELS
]
SPARK_CELLS = [(flavour, cell) for flavour in conformance.FLAVOURS for cell in CELLS]
SPARK_CELLS += [(backend, cell) for backend in conformance.BACKENDS for cell in BACKEND_CELLS]
#: There all rows of a run have to lie as they are, and so are of one dataset.
SPARK_CELLS = [(flavour, cell) for flavour, cell in SPARK_CELLS if cell[0] not in uneven.CASES]
#: A single process computes the same whoever started it; `make conformance` runs those, too.
ON_SPARK = ("multi_worker_mirrored",)
#: What Spark adds, feed and launch, is the same for the other flavours; `--all` runs them, too.
FLAVOURS_ON_SPARK = ("keras",)


@pytest.fixture(scope="module")
def expected(request, tmp_path_factory):
    def make():
        return conformance.run_plain(tmp_path_factory.mktemp("plain"))

    return made_once(request.config, tmp_path_factory, "conformance-expected", make)


@pytest.fixture(scope="module")
def local(expected, tmp_path_factory):
    return conformance.run_table(expected, tmp_path_factory.mktemp("local"), at_once=2)


@pytest.fixture(scope="module")
def on_spark(expected, spark, request, tmp_path_factory):
    whole = request.config.getoption("whole")
    return conformance.run_table(
        expected,
        tmp_path_factory.mktemp("spark"),
        spark,
        strategies=ON_SPARK,
        flavours=conformance.installed() if whole else FLAVOURS_ON_SPARK,
    )


def check(outcome, cell):
    assert outcome.passed, f"{cell}: {outcome}"
    if cell[1] != MODELS[-1] and cell not in asynchronous.CELLS:
        assert not outcome.by_loss


@pytest.mark.timeout(900)  # the first test computes the whole table
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
@pytest.mark.parametrize("strategy", conformance.STRATEGIES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: ", ".join(cell))
def test_it_computes_what_one_process_computes(local, cell, strategy, flavour):
    check(local[strategy, flavour][cell], cell)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", conformance.STRATEGIES)
@pytest.mark.parametrize(("flavour", "cell"), STEP_CELLS, ids=str)
def test_steps_of_every_kind_compute_what_one_process_computes(local, cell, strategy, flavour):
    check(local[strategy, flavour][cell], cell)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", conformance.BACKENDS)
@pytest.mark.parametrize("cell", BACKEND_CELLS, ids=lambda cell: ", ".join(cell))
def test_other_backends_compute_what_one_process_computes(local, cell, backend):
    if backend not in conformance.installed():
        pytest.skip(f"{backend} isn't installed")
    check(local["multi_worker_mirrored", backend][cell], cell)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
@pytest.mark.parametrize("cell", asynchronous.CELLS, ids=lambda cell: ", ".join(cell))
def test_parameter_servers_are_as_good_as_synchronous_training(local, cell, flavour):
    check(local["parameter_server", flavour][cell], cell)


@pytest.mark.timeout(900)
@pytest.mark.full(flavour=("tf_keras", *conformance.BACKENDS))
@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize(("flavour", "cell"), SPARK_CELLS, ids=str)
def test_it_computes_the_same_on_spark(on_spark, cell, strategy, flavour):
    if flavour not in conformance.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(on_spark[strategy, flavour][cell], cell)


def test_the_table_has_a_row_for_each_cell(local):
    lines = conformance.table(local).splitlines()
    assert len(lines) == 2 + len(CELLS) + len(STEP_CASES) + len(asynchronous.CELLS)
    assert all(f"{s} {f}" in lines[0] for s, f in local)
