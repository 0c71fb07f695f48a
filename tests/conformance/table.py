"""A table that shows whether distributed training computes what one process computes.

Each cell trains, evaluates, predicts, saves or resumes a small model in one way, under one strategy
and with one flavour of Keras. It compares the result with a single process of that flavour on the
same global batches, without gridflow (arrays passed to ``fit``). The number in a cell is the
largest difference in any weight or output. Layers that work per replica (plain BatchNormalization,
Dropout) can't give the same numbers on several replicas: there the losses are compared, and all
ranks must hold the same weights and statistics. Asynchronous training has its own column, with
different cases (`conformance.asynchronous`).

``make conformance`` prints the table, for local processes and for Spark.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle

from conformance import asynchronous, uneven, weighted
from conformance.cases import MODELS, CaseResult, rows
from conformance.columns import BACKENDS, FLAVOURS, column
from conformance.outcomes import TOLERANCE, Cell, CellOutcome, compare, table
from gridflow._spec.backends import KERAS_VARIABLE
from gridflow._spec.job import Role
from gridflow._spec.option_groups import Deadlines, LaunchOptions
from suite.new_process import WITH_SUITE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from pyspark.sql import SparkSession

    from gridflow._spec.strategies import Strategy

#: For each strategy, the number of workers and of replicas per worker.
STRATEGIES: Final[Mapping[Strategy, tuple[int, int]]] = {
    "none": (1, 1),
    "mirrored": (1, 1),
    "multi_worker_mirrored": (2, 1),
}
#: Workers of the parameter server column: four slots, with a server and the chief.
_ASYNCHRONOUS_WORKERS: Final = 2
_MULTI_WORKER: Final = "multi_worker_mirrored"
_SERVERS: Final = "parameter_server"
#: A GPU computes in TensorFloat-32 otherwise, with three decimal digits.
_EXACT: Final = {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
#: Or a process would take all memory of a GPU on which others compute, too.
_GROWTH: Final = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_TIMEOUT: Final = 600.0  # seconds for a column; about 60 on an idle machine


def installed() -> tuple[str, ...]:
    """Return the flavours and backends that are installed."""
    there = (each for each in BACKENDS if importlib.util.find_spec(each) is not None)
    return (*FLAVOURS, *there)


def run_plain(
    flavour: str,
    directory: Path,
    *,
    in_full: bool = True,
    models: int = len(MODELS),
    steps: bool = True,
    weights: bool = True,
    data_cases: bool = True,
    gpus: float = 0,
) -> dict[Cell, CaseResult]:
    """Return what a flavour computes in one plain process.

    Parameters
    ----------
    flavour : str
        Of Keras on TensorFlow, or another backend of Keras 3.
    directory : Path
        Where to write a temporary file.
    in_full, models, steps, weights, data_cases
        See `run_column`.
    gpus : float, default 0
        0: it computes on the CPU.
    """
    place = directory / f"plain-{flavour}"
    options = f"{in_full=}, {models=}, {steps=}, {weights=}, {data_cases=}"
    arguments = f"{flavour!r}, {str(place)!r}, {options}"
    call = f"from conformance import columns; columns.plain({arguments})"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call],
        check=True,
        timeout=_TIMEOUT,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            **_environment(gpus),
            **_GROWTH,
            KERAS_VARIABLE: _backend_of(flavour),
            **WITH_SUITE,
        },
    )
    found: dict[Cell, CaseResult] = cloudpickle.loads(place.read_bytes())
    return found


def run_table(
    expected: Mapping[str, Mapping[Cell, CaseResult]],
    directory: Path,
    spark: SparkSession | None = None,
    at_once: int = 1,
    warm_seconds: float = LaunchOptions.warm_seconds,
    gpus: float = 0,
) -> dict[tuple[Strategy, str], dict[Cell, CellOutcome]]:
    """Run all columns and return the outcomes.

    Parameters
    ----------
    expected : dict
        The results of `run_plain`, by flavour.
    directory : Path
        An empty folder that all tasks can access.
    spark : SparkSession, optional
        Where to run. Each concurrent column needs two slots, or four with parameter servers.
        Default: processes on this machine.
    at_once : int, default 1
        Number of columns to run at the same time.
    warm_seconds : float, default 300
        See `gridflow.LaunchOptions`; with 0, no training process is forked.
    gpus : float, default 0
        Of each worker, as in `TensorflowDistributor`.
    """
    columns = [
        (strategy, flavour)
        for strategy in (*STRATEGIES, _SERVERS)
        for flavour in (installed() if strategy == _MULTI_WORKER else FLAVOURS)
        # Only NCCL connects JAX's processes, and it refuses those that share a GPU.
        if strategy != _MULTI_WORKER or flavour != "jax" or gpus in {0, 1}
    ]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        running = {
            (strategy, flavour): pool.submit(
                run_column,
                strategy,
                flavour,
                expected[flavour],
                directory / f"{strategy}-{flavour}",
                spark,
                warm_seconds=warm_seconds,
                gpus=gpus,
            )
            for strategy, flavour in columns
        }
        return {column: each.result() for column, each in running.items()}


def run_column(
    strategy: Strategy,
    flavour: str,
    expected: Mapping[Cell, CaseResult],
    shared: Path,
    spark: SparkSession | None = None,
    *,
    warm_seconds: float = LaunchOptions.warm_seconds,
    in_full: bool = True,
    models: int = len(MODELS),
    steps: bool = True,
    weights: bool = True,
    data_cases: bool = True,
    gpus: float = 0,
) -> dict[Cell, CellOutcome]:
    """Run one column and return the outcomes.

    Parameters
    ----------
    strategy, flavour : str
    expected : dict
        The result of `run_plain` for the flavour.
    shared : Path
        A folder that doesn't exist yet; all tasks must be able to access it.
    spark, warm_seconds
        See `run_table`.
    in_full : bool, default True
        Whether to include the cases of `uneven` and `batch_cases`, and those that `steps` and
        `weights` are for.
    models : int, default all
        Number of `MODELS` to train.
    steps, weights : bool, default True
        Whether to include the cases of `step_results` and of `weighted`.
    data_cases : bool, default True
        Whether to include the ways to pass data to ``fit``, `DATA_CASES`.
    gpus : float, default 0
        Of each worker, as in `TensorflowDistributor`.
    """
    from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor

    is_asynchronous = strategy == _SERVERS
    workers, replicas = STRATEGIES.get(strategy, (1, 1))
    fed = _ASYNCHRONOUS_WORKERS if is_asynchronous else workers
    shared.mkdir()
    data: Any = asynchronous.rows() if is_asynchronous else rows(workers)
    launcher: Any = LocalLauncher()
    if spark is None and not is_asynchronous:
        data |= uneven.datasets() | weighted.datasets(workers)
    if spark is not None:
        # The rows must stay in their partitions: otherwise the global batches would differ.
        data = {name: _frame(spark, columns, fed) for name, columns in data.items()}
        launcher = SparkLauncher(spark, repartition="never")
    servers = [Role("ps", 1)] if is_asynchronous else []
    distributor = TensorflowDistributor(
        roles=[*servers, Role("worker", fed, gpus=gpus or None)],
        strategy=strategy,
        backend=_backend_of(flavour),
        launcher=launcher,
        env={**_environment(gpus), **WITH_SUITE},
        job_dir=shared / "job",
        launch_options=LaunchOptions(warm_seconds=warm_seconds),
        deadlines=Deadlines(step=_TIMEOUT),
        logs="none",
        progress=False,
        nulls="drop",
    )
    if is_asynchronous:
        distributor.run(asynchronous.column, flavour, str(shared), data=data)
    else:
        more = {"in_full": in_full and spark is None, "models": models}
        more |= {"steps": steps, "weights": weights, "data_cases": data_cases}
        distributor.run(column, flavour, replicas, str(shared), **more, data=data)
    ranks = [cloudpickle.loads((shared / f"rank-{rank}").read_bytes()) for rank in range(workers)]
    return compare(ranks, expected, flavour, math.prod(STRATEGIES.get(strategy, (1, 1))))


def _environment(gpus: float) -> dict[str, str]:
    return _EXACT if gpus else {"CUDA_VISIBLE_DEVICES": "-1"}


def _backend_of(flavour: str) -> Any:
    return flavour if flavour in BACKENDS else "tensorflow"


def _frame(spark: SparkSession, columns: Mapping[str, np.ndarray], partitions: int) -> Any:
    """Return the rows, in order, as a DataFrame with that many partitions."""
    names = {"float32": "float", "int32": "int"}
    types = [
        f"{name} " + ("array<{}>" if values.ndim > 1 else "{}").format(names[str(values.dtype)])
        for name, values in columns.items()
    ]
    lists = zip(*(values.tolist() for values in columns.values()), strict=True)
    return spark.createDataFrame(
        spark.sparkContext.parallelize(list(lists), partitions), ", ".join(types)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.table",
        description="Compare each way to train with a single process. Takes about ten minutes.",
    )
    choices = ("local", "spark")
    parser.add_argument(
        "--launcher", choices=choices, action="append", help="default: both, in turn"
    )
    parser.add_argument(
        "--anew", action="store_true", help="start each training process from scratch, without fork"
    )
    parser.add_argument(
        "--gpus",
        type=float,
        default=0,
        help="of each worker, as in TensorflowDistributor, such as 0.25; default: compute on CPUs",
    )
    options = parser.parse_args(arguments)
    chosen = options.launcher or choices
    warm_seconds = 0.0 if options.anew else LaunchOptions.warm_seconds
    sys.stdout.write(
        "Largest difference from a single process on the same global batches "
        f"(at most {TOLERANCE:.0e}; of the loss where replicas can't compute the same values).\n"
    )
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gridflow-conformance-") as text:
        directory = Path(text)
        gpus = options.gpus
        expected = {flavour: run_plain(flavour, directory, gpus=gpus) for flavour in installed()}
        for launcher in chosen:
            (directory / launcher).mkdir()
            outcomes = _run_on(launcher, expected, directory / launcher, warm_seconds, gpus)
            cells = [cell for column in outcomes.values() for cell in column.values()]
            passed = sum(cell.passed for cell in cells)
            failed += len(cells) - passed
            sys.stdout.write(
                f"\nLauncher: {launcher}\n\n{table(outcomes)}\n\n"
                f"{passed} of {len(cells)} cells pass.\n"
            )
            sys.stdout.flush()
    return 1 if failed else 0


def _run_on(
    launcher: str,
    expected: Mapping[str, Mapping[Cell, CaseResult]],
    directory: Path,
    warm_seconds: float,
    gpus: float,
) -> dict[tuple[Strategy, str], dict[Cell, CellOutcome]]:
    if launcher == "local":
        return run_table(expected, directory, None, 2, warm_seconds, gpus)
    from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

    with StandaloneCluster(workers=2, cores=2) as cluster:
        spark = cluster.session()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            wait_for_slots(spark, 4)
            return run_table(expected, directory, spark, 1, warm_seconds, gpus)
        finally:
            spark.stop()


if __name__ == "__main__":
    # Import the module instead of using __main__, so that its functions are pickled by name.
    from conformance.table import main as run

    sys.exit(run())
