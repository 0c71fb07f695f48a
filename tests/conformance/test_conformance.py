"""Every cell of the conformance table, and on Spark those of several workers."""

from __future__ import annotations

import pytest

from gridflow.testing import asynchronous, batch_cases, conformance, uneven, weighted
from gridflow.testing.cases import DATA_CASES, MODELS, TENSORFLOW_CASES, TENSORFLOW_MODELS
from gridflow.testing.step_cases import STEP_CASES, cases_of
from suite.schedule import made_once

pytestmark = pytest.mark.slow

CASES = ("fit", "evaluate", "predict", "checkpoint and resume", "save", "custom loop")
CELLS = [(case, model) for model in MODELS for case in CASES]
CELLS += [(case, MODELS[0]) for case in (*DATA_CASES, *uneven.CASES, *batch_cases.CASES)]
#: Optimizers, losses and steps that aren't the usual ones.
STEP_CELLS = [
    (flavour, (case, MODELS[0])) for flavour in conformance.FLAVOURS for case in cases_of(flavour)
]
BACKEND_STEP_CELLS = [
    (flavour, (case, MODELS[0])) for flavour in conformance.BACKENDS for case in cases_of(flavour)
]
#: A single process computes the same whoever started it; `make conformance` runs those, too.
ON_SPARK = ("multi_worker_mirrored",)
#: What doesn't count alike on all replicas.
WEIGHTED_CELLS = [
    (strategy, flavour, (case, MODELS[0]))
    for strategy in conformance.STRATEGIES
    for flavour in (*conformance.FLAVOURS, *(conformance.BACKENDS if strategy in ON_SPARK else ()))
    for case in weighted.cases_of(flavour)
]
#: The same for Keras 3 on JAX and torch.
BACKEND_CELLS = [
    (case, model)
    for case, model in CELLS
    if case not in (*TENSORFLOW_CASES, *batch_cases.CASES) and model not in TENSORFLOW_MODELS
]
SPARK_CELLS = [(flavour, cell) for flavour in conformance.FLAVOURS for cell in CELLS]
SPARK_CELLS += [(backend, cell) for backend in conformance.BACKENDS for cell in BACKEND_CELLS]
#: There all rows of a run have to lie as they are, and so are of one dataset.
SPARK_CELLS = [
    (flavour, cell)
    for flavour, cell in SPARK_CELLS
    if cell[0] not in (*uneven.CASES, *batch_cases.CASES)
]
#: Where patches, feed and groups are tried by one model, the others only try Keras again; but one
#: of them has replicas that meet in each layer. `--all` trains all of them everywhere.
OTHER_MODELS = tuple(cell for cell in CELLS if cell[1] != MODELS[0])
AMONG_SEVERAL = 2
LONELY_MODELS = tuple(cell for cell in CELLS if cell[1] not in MODELS[:AMONG_SEVERAL])
#: What Spark adds, feed and launch, is the same for the other flavours and models; `--all` runs
#: them, too.
NOT_ON_SPARK = {
    "flavour": ("tf_keras", *conformance.BACKENDS),
    "cell": OTHER_MODELS,
}
#: tf_keras has the patches of several workers; what a single process does there is Keras's own.
#: `--all` runs these columns, too.
ALONE = pytest.mark.full(strategy=("none", "mirrored"), flavour="tf_keras")


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """Give the outcomes of a column, which is run when it is first asked for."""
    columns = {}

    def options_of(flavour, *, is_many, has_steps):
        whole = request.config.getoption("whole")
        several = AMONG_SEVERAL if flavour == "keras" and is_many else 1
        return {
            "models": len(MODELS) if whole else several,
            "steps": whole or (flavour == "keras" and has_steps),
            "weights": whole or flavour != "jax",
        }

    def expected_of(flavour):
        options = options_of(flavour, is_many=True, has_steps=True)

        def make():
            return conformance.run_plain(flavour, tmp_path_factory.mktemp("plain"), **options)

        return made_once(request.config, tmp_path_factory, f"conformance-{flavour}", make)

    def outcomes_of(strategy, flavour, spark=None):
        column = strategy, flavour, spark is None
        if column not in columns:
            is_many = spark is None and strategy in ON_SPARK
            options = options_of(flavour, is_many=is_many, has_steps=strategy != "mirrored")
            folder = tmp_path_factory.mktemp("column") / "shared"
            expected = expected_of(flavour)
            columns[column] = conformance.run_column(
                strategy, flavour, expected, folder, spark, **options
            )
        return columns[column]

    outcomes_of.expected_of = expected_of
    return outcomes_of


def check(outcome, cell):
    assert outcome.passed, f"{cell}: {outcome}"
    if cell[1] != MODELS[-1] and cell not in asynchronous.CELLS:
        assert not outcome.by_loss


@pytest.mark.timeout(600)  # the first test of a column computes all of it
@ALONE
@pytest.mark.full(flavour="tf_keras", cell=OTHER_MODELS)
@pytest.mark.full(strategy=("none", "mirrored"), cell=OTHER_MODELS)
@pytest.mark.full(cell=LONELY_MODELS)
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
@pytest.mark.parametrize("strategy", conformance.STRATEGIES)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: ", ".join(cell))
def test_it_computes_what_one_process_computes(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full(flavour="tf_keras")  # the step is that of Keras 3 but for patches, tried by fit
@pytest.mark.full(strategy="mirrored")  # its replicas share a batch as those of several workers do
@pytest.mark.parametrize("strategy", conformance.STRATEGIES)
@pytest.mark.parametrize(("flavour", "cell"), STEP_CELLS, ids=str)
def test_steps_of_every_kind_compute_what_one_process_computes(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full(flavour="jax")  # a global batch is one batch there
@pytest.mark.full(strategy=("none", "mirrored"), flavour="tf_keras")
@pytest.mark.parametrize(("strategy", "flavour", "cell"), WEIGHTED_CELLS, ids=str)
def test_what_counts_differently_on_replicas_counts_as_in_one_process(
    outcomes, cell, strategy, flavour
):
    if flavour not in conformance.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full  # what a step computes there is the same code; what spreads it has cells above
@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize(("flavour", "cell"), BACKEND_STEP_CELLS, ids=str)
def test_steps_of_every_kind_compute_it_on_other_backends(outcomes, cell, strategy, flavour):
    if flavour not in conformance.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full(cell=OTHER_MODELS)
@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize("flavour", conformance.BACKENDS)
@pytest.mark.parametrize("cell", BACKEND_CELLS, ids=lambda cell: ", ".join(cell))
def test_other_backends_compute_what_one_process_computes(outcomes, cell, strategy, flavour):
    if flavour not in conformance.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full(flavour="tf_keras")  # tests/distribution/test_parameter_servers.py has it
@pytest.mark.parametrize("strategy", ["parameter_server"])
@pytest.mark.parametrize("flavour", conformance.FLAVOURS)
@pytest.mark.parametrize("cell", asynchronous.CELLS, ids=lambda cell: ", ".join(cell))
def test_parameter_servers_are_as_good_as_synchronous_training(outcomes, cell, strategy, flavour):
    check(outcomes(strategy, flavour)[cell], cell)


@pytest.mark.timeout(600)
@pytest.mark.full(flavour=NOT_ON_SPARK["flavour"])
@pytest.mark.full(cell=NOT_ON_SPARK["cell"])
@pytest.mark.parametrize("strategy", ON_SPARK)
@pytest.mark.parametrize(("flavour", "cell"), SPARK_CELLS, ids=str)
def test_it_computes_the_same_on_spark(outcomes, spark, cell, strategy, flavour):
    if flavour not in conformance.installed():
        pytest.skip(f"{flavour} isn't installed")
    check(outcomes(strategy, flavour, spark)[cell], cell)


@pytest.mark.parametrize(("strategy", "flavour"), [("none", "keras")])
def test_the_table_has_a_row_for_each_cell(outcomes, strategy, flavour, pytestconfig):
    expected = outcomes.expected_of(flavour)
    models = MODELS if pytestconfig.getoption("whole") else MODELS[:AMONG_SEVERAL]
    cells = [cell for cell in CELLS if cell[1] in models]
    column = conformance.compare([expected], expected, flavour, 1)
    lines = conformance.table({(strategy, flavour): column}).splitlines()
    others = (*STEP_CASES, *weighted.CASES, *asynchronous.CELLS)
    assert len(lines) == 2 + len(cells) + len(others)
    assert f"{strategy} {flavour}" in lines[0]
