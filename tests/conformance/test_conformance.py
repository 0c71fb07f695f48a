"""Every cell of the conformance table, and on Spark those of several workers."""

from __future__ import annotations

import pytest

from conformance import asynchronous, batch_cases, table, uneven, weighted
from conformance import outcomes as found
from conformance.cases import DATA_CASES, MODELS, TENSORFLOW_CASES, TENSORFLOW_MODELS
from conformance.step_cases import STEP_CASES, cases_of
from suite.schedule import made_once

pytestmark = pytest.mark.slow

CASES = ("fit", "evaluate", "predict", "checkpoint and resume", "save", "custom loop")
CELLS = [(case, model) for model in MODELS for case in CASES]
CELLS += [(case, MODELS[0]) for case in (*DATA_CASES, *uneven.CASES, *batch_cases.CASES)]
#: Optimizers, losses and steps that aren't the usual ones.
STEP_CELLS = [
    (flavour, (case, MODELS[0])) for flavour in table.FLAVOURS for case in cases_of(flavour)
]
BACKEND_STEP_CELLS = [
    (flavour, (case, MODELS[0])) for flavour in table.BACKENDS for case in cases_of(flavour)
]
#: A single process computes the same whoever started it; `make conformance` runs those, too.
ON_SPARK = ("multi_worker_mirrored",)
#: What doesn't count alike on all replicas.
WEIGHTED_CELLS = [
    (strategy, flavour, (case, MODELS[0]))
    for strategy in table.STRATEGIES
    for flavour in (*table.FLAVOURS, *(table.BACKENDS if strategy in ON_SPARK else ()))
    for case in weighted.cases_of(flavour)
]
#: The same for Keras 3 on JAX and torch.
BACKEND_CELLS = [
    (case, model)
    for case, model in CELLS
    if case not in (*TENSORFLOW_CASES, *batch_cases.CASES) and model not in TENSORFLOW_MODELS
]
SPARK_CELLS = [(flavour, cell) for flavour in table.FLAVOURS for cell in CELLS]
SPARK_CELLS += [(backend, cell) for backend in table.BACKENDS for cell in BACKEND_CELLS]
#: There all rows of a run have to lie as they are, and so are of one dataset.
SPARK_CELLS = [
    (flavour, cell)
    for flavour, cell in SPARK_CELLS
    if cell[0] not in (*uneven.CASES, *batch_cases.CASES)
]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """Give the outcomes of a column, which is run when it is first asked for."""
    columns = {}

    def options_of(flavour, column=None):
        """Return what the selected cells of a column, or of all of a flavour's, need."""
        cells = [
            item.callspec.params["cell"]
            for item in request.session.items
            if item.path == request.path
            and item.callspec.params["flavour"] == flavour
            and column in {None, (item.callspec.params["strategy"], "spark" in item.fixturenames)}
            and "cell" in item.callspec.params
        ]
        models = [MODELS.index(model) for _, model in cells if model in MODELS]
        usual = {*CASES, *DATA_CASES}
        return {
            "in_full": any(case not in usual for case, _ in cells),
            "models": max(models, default=0) + 1,
            "steps": any(case in STEP_CASES for case, _ in cells),
            "weights": any(case in weighted.CASES for case, _ in cells),
            "data_cases": any(case in DATA_CASES for case, _ in cells),
        }

    def expected_of(flavour):
        def make():
            folder = tmp_path_factory.mktemp("plain")
            return table.run_plain(flavour, folder, **options_of(flavour))

        return made_once(request.config, tmp_path_factory, f"conformance-{flavour}", make)

    def outcomes_of(strategy, flavour, spark=None):
        column = strategy, spark is not None
        if (flavour, *column) not in columns:
            options = options_of(flavour, column)
            folder = tmp_path_factory.mktemp("column") / "shared"
            expected = expected_of(flavour)
            columns[flavour, *column] = table.run_column(
                strategy, flavour, expected, folder, spark, **options
            )
        return columns[flavour, *column]

    outcomes_of.options_of = options_of
    outcomes_of.expected_of = expected_of
    return outcomes_of


def check(outcome, cell):
    assert outcome.passed, f"{cell}: {outcome}"
    if cell[1] != MODELS[-1] and cell not in asynchronous.CELLS:
        assert not outcome.by_loss


@pytest.mark.parametrize("flavour", table.FLAVOURS)
@pytest.mark.parametrize("strategy", table.STRATEGIES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: ", ".join(cell))
def test_it_computes_what_one_process_computes(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize("strategy", table.STRATEGIES)
@pytest.mark.parametrize(("flavour", "cell"), STEP_CELLS, ids=str)
def test_steps_of_every_kind_compute_what_one_process_computes(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize(("strategy", "flavour", "cell"), WEIGHTED_CELLS, ids=str)
def test_what_counts_differently_on_replicas_counts_as_in_one_process(
    outcomes, cell, strategy, flavour
):
    if flavour not in table.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize(("flavour", "cell"), BACKEND_STEP_CELLS, ids=str)
def test_steps_of_every_kind_compute_it_on_other_backends(outcomes, cell, strategy, flavour):
    if flavour not in table.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize("flavour", table.BACKENDS)
@pytest.mark.parametrize("cell", BACKEND_CELLS, ids=lambda cell: ", ".join(cell))
def test_other_backends_compute_what_one_process_computes(outcomes, cell, strategy, flavour):
    if flavour not in table.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize("strategy", ["parameter_server"])
@pytest.mark.parametrize("flavour", table.FLAVOURS)
@pytest.mark.parametrize("cell", asynchronous.CELLS, ids=lambda cell: ", ".join(cell))
def test_parameter_servers_are_as_good_as_synchronous_training(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize(("flavour", "cell"), SPARK_CELLS, ids=str)
def test_it_computes_the_same_on_spark(outcomes, spark, cell, strategy, flavour):
    if flavour not in table.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour, spark)[cell], cell)


@pytest.mark.parametrize(("strategy", "flavour"), [("none", "keras")])
def test_the_table_has_a_row_for_each_cell(outcomes, strategy, flavour):
    expected = outcomes.expected_of(flavour)
    column = found.compare([expected], expected, flavour, 1)
    lines = found.table({(strategy, flavour): column}).splitlines()
    assert len(lines) == 2 + len(expected)
    assert f"{strategy} {flavour}" in lines[0]
