"""Does distributed training compute what one process computes? A table of answers.

Every cell trains, evaluates, predicts, saves or resumes a small model in one way, under one
strategy, with one flavour of Keras, and compares with one plain process of that flavour on the
same global batches (without gridflow: arrays given to ``fit``). The number in a cell is the
largest difference of any weight or output. Where batches are normalised, or rows dropped, per
replica (plain BatchNormalization, Dropout), several replicas can't compute the same: there the
losses are compared, and all ranks must hold the same weights and statistics.

``python -m gridflow.testing.conformance`` prints the table, for plain processes and for Spark.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cloudpickle
import numpy as np

from gridflow.testing.cases import (
    MODELS,
    Lab,
    Result,
    data_results,
    plain_data_results,
    plain_results,
    results,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from gridflow.options import Strategy

FLAVOURS: Final = ("keras", "tf_keras")
#: Strategy, and how many workers and replicas in each worker it gets.
STRATEGIES: Final[Mapping[Strategy, tuple[int, int]]] = {
    "none": (1, 1),
    "mirrored": (1, 2),
    "multi_worker_mirrored": (2, 1),
}
#: Largest difference of a weight or output that float32 arithmetic in another order explains.
TOLERANCE: Final = 1e-5
#: Largest relative difference of a loss where replicas can't compute the same.
LOSS_TOLERANCE: Final = 0.35
_TIMEOUT: Final = 600.0  # seconds for a column; about 60 on an idle machine

Cell = tuple[str, str]


@dataclass(frozen=True)
class Outcome:
    """The answer of one cell.

    Attributes
    ----------
    difference : float
        Largest difference of a weight or output; for `by_loss`, largest relative difference of a
        loss.
    by_loss : bool
        Whether only losses can be compared.
    ranks_agree : bool
        Whether all ranks hold bit for bit the same weights and statistics.
    """

    difference: float
    by_loss: bool
    ranks_agree: bool

    @property
    def passed(self) -> bool:
        """Whether the differences are within the tolerance."""
        limit = LOSS_TOLERANCE if self.by_loss else TOLERANCE
        return self.ranks_agree and self.difference <= limit

    def __str__(self) -> str:
        text = f"loss {self.difference:.0%}" if self.by_loss else f"{self.difference:.1e}"
        return text + ("" if self.ranks_agree else " ranks differ") + ("" if self.passed else " ✗")


def column(ctx: Any, flavour: str, replicas: int, shared: str) -> None:
    """Be one rank of all cells of one strategy and flavour; a training function.

    Parameters
    ----------
    ctx : TrainingContext
        Its data are `rows` for as many workers, a contiguous share in order on each rank.
    flavour : {"keras", "tf_keras"}
    replicas : int
        In this process: logical CPU devices for ``mirrored``.
    shared : str
        A folder that all ranks see, for checkpoints and what each of them found.
    """
    if replicas > 1:
        _split_the_cpu(replicas)
    lab = Lab(importlib.import_module(flavour), ctx.strategy)
    if lab.replicas != replicas * ctx.num_workers:
        raise AssertionError(f"{lab.replicas} replicas, {replicas} in each worker were wanted")
    found: dict[Cell, Result] = {}
    for model in MODELS:
        for case, result in results(ctx, lab, model, shared).items():
            found[case, model] = result
    for case, result in data_results(ctx, lab).items():
        found[case, MODELS[0]] = result
    Path(shared, f"rank-{ctx.rank}").write_bytes(cloudpickle.dumps(found))


def _split_the_cpu(devices: int) -> None:
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(devices)],
    )


def plain(flavour: str, found_in: str) -> None:
    """Compute what all cells of a flavour are compared with, in a process without gridflow."""
    import tensorflow as tf

    lab = Lab(importlib.import_module(flavour), tf.distribute.get_strategy())
    found: dict[Cell, Result] = {}
    for model in MODELS:
        for case, result in plain_results(lab, model).items():
            found[case, model] = result
    for case, result in plain_data_results(lab).items():
        found[case, MODELS[0]] = result
    Path(found_in).write_bytes(cloudpickle.dumps(found))


def compare(
    ranks: Sequence[Mapping[Cell, Result]],
    expected: Mapping[Cell, Result],
    flavour: str,
    replicas: int,
) -> dict[Cell, Outcome]:
    """Compare what all ranks computed in `column` with what one process did in `plain`.

    Parameters
    ----------
    ranks : sequence of dict
        What each rank returned.
    expected : dict
        What `plain` returned.
    flavour : {"keras", "tf_keras"}
    replicas : int
        Replicas of all ranks together.
    """
    outcomes: dict[Cell, Outcome] = {}
    for cell in ranks[0]:
        want, got = expected[cell], [rank[cell] for rank in ranks]
        by_loss = is_compared_by_loss(cell, flavour, replicas)
        differences = [_relative(each.losses, want.losses) for each in got]
        if not by_loss:
            differences += [
                _difference(have, wish)
                for each in got
                for have, wish in zip(each.values, want.values, strict=True)
            ]
        agree = all(_same(got[0].values, other.values) for other in got[1:])
        outcomes[cell] = Outcome(max(differences), by_loss, agree)
    return outcomes


def is_compared_by_loss(cell: Cell, flavour: str, replicas: int) -> bool:
    """Return whether a cell can't give the same numbers as one process, and why that is so.

    Several replicas normalise their own part of a batch, and drop other rows. In tf_keras the
    random numbers of Dropout come from a state inside of TensorFlow's operations, which begins
    anew in each function that is traced, in a resumed ``fit`` and in a loop of one's own.
    """
    case, model = cell
    anew = flavour == "tf_keras" and case in {"checkpoint and resume", "custom loop"}
    return model == MODELS[-1] and (replicas > 1 or anew)


def _same(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _difference(have: np.ndarray, want: np.ndarray) -> float:
    if have.shape != want.shape or not np.isfinite(have).all():
        return float("inf")
    return float(np.max(np.abs(have - want), initial=0.0))


def _relative(have: Sequence[float], want: Sequence[float]) -> float:
    if len(have) != len(want) or not np.isfinite(have).all():
        return float("inf")
    pairs = zip(have, want, strict=True)
    return max((abs(a - b) / max(abs(b), 1e-6) for a, b in pairs), default=0.0)


def run_plain(directory: Path) -> dict[str, dict[Cell, Result]]:
    """Return what each flavour computes in one plain process.

    Parameters
    ----------
    directory : Path
        Empty, for files of this function's own.
    """
    call = "import sys; from gridflow.testing import conformance; conformance.plain(*sys.argv[1:])"
    places = {flavour: directory / flavour for flavour in FLAVOURS}
    for flavour, place in places.items():
        command = [sys.executable, "-W", "ignore", "-c", call, flavour, str(place)]
        subprocess.run(command, check=True, timeout=_TIMEOUT, stderr=subprocess.DEVNULL)
    return {flavour: cloudpickle.loads(place.read_bytes()) for flavour, place in places.items()}


def run_table(
    expected: Mapping[str, Mapping[Cell, Result]],
    directory: Path,
    spark: SparkSession | None = None,
    at_once: int = 1,
    strategies: Sequence[Strategy] = tuple(STRATEGIES),
) -> dict[tuple[Strategy, str], dict[Cell, Outcome]]:
    """Run all columns and return the outcomes.

    Parameters
    ----------
    expected : dict
        What `run_plain` returned.
    directory : Path
        Empty; all tasks must see it.
    spark : SparkSession, optional
        Where to run, two slots for each column at once. Default: plain processes here.
    at_once : int, default 1
        Columns beside one another.
    strategies : sequence of str
        Default: all.
    """
    columns = [(strategy, flavour) for strategy in strategies for flavour in FLAVOURS]
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        running = [
            pool.submit(_run_column, strategy, flavour, directory / f"{strategy}-{flavour}", spark)
            for strategy, flavour in columns
        ]
        found = [each.result() for each in running]
    return {
        (strategy, flavour): compare(
            ranks, expected[flavour], flavour, STRATEGIES[strategy][0] * STRATEGIES[strategy][1]
        )
        for (strategy, flavour), ranks in zip(columns, found, strict=True)
    }


def _run_column(
    strategy: Strategy, flavour: str, shared: Path, spark: SparkSession | None
) -> list[dict[Cell, Result]]:
    from gridflow import LocalLauncher, SparkLauncher, TensorflowDistributor

    workers, replicas = STRATEGIES[strategy]
    shared.mkdir()
    data: Any = rows(workers)
    launcher: Any = LocalLauncher()
    if spark is not None:
        # The rows are to stay where they are: only so the global batches are the same.
        data = {name: _frame(spark, columns, workers) for name, columns in data.items()}
        launcher = SparkLauncher(spark, repartition="never")
    distributor = TensorflowDistributor(
        workers,
        strategy,
        launcher=launcher,
        env={"CUDA_VISIBLE_DEVICES": "-1"},
        job_dir=shared / "job",
        step_timeout=_TIMEOUT,
        logs="none",
        progress=False,
    )
    distributor.run(column, flavour, replicas, str(shared), data=data)
    return [cloudpickle.loads((shared / f"rank-{rank}").read_bytes()) for rank in range(workers)]


def _frame(spark: SparkSession, columns: Mapping[str, np.ndarray], partitions: int) -> Any:
    """Return the rows as a DataFrame of that many partitions, in order."""
    names = {"float32": "float", "int32": "int"}
    types = [
        f"{name} " + ("array<{}>" if values.ndim > 1 else "{}").format(names[str(values.dtype)])
        for name, values in columns.items()
    ]
    lists = zip(*(values.tolist() for values in columns.values()), strict=True)
    return spark.createDataFrame(
        spark.sparkContext.parallelize(list(lists), partitions), ", ".join(types)
    )


def table(outcomes: Mapping[tuple[Strategy, str], Mapping[Cell, Outcome]]) -> str:
    """Return the outcomes as text, a row for each case and model."""
    heads = [f"{strategy} {flavour}" for strategy, flavour in outcomes]
    cells = list(dict.fromkeys(cell for column in outcomes.values() for cell in column))
    lines = [["case", "model", *heads]]
    lines += [
        [*cell, *(str(column.get(cell, "-")) for column in outcomes.values())] for cell in cells
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = [
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(
        prog="python -m gridflow.testing.conformance",
        description="Compare every way to train with one plain process; takes about ten minutes.",
    )
    choices = ("local", "spark")
    parser.add_argument(
        "--launcher", choices=choices, action="append", help="default: both, one after the other"
    )
    chosen = parser.parse_args(arguments).launcher or choices
    sys.stdout.write(
        "Largest difference to one process on the same global batches "
        f"(at most {TOLERANCE:.0e}; where replicas can't compute the same, of the loss).\n"
    )
    failed = 0
    with tempfile.TemporaryDirectory(prefix="gridflow-conformance-") as text:
        directory = Path(text)
        expected = run_plain(directory)
        for launcher in chosen:
            (directory / launcher).mkdir()
            outcomes = _run_on(launcher, expected, directory / launcher)
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
    launcher: str, expected: Mapping[str, Mapping[Cell, Result]], directory: Path
) -> dict[tuple[Strategy, str], dict[Cell, Outcome]]:
    if launcher == "local":
        return run_table(expected, directory, at_once=2)
    from gridflow.testing.cluster import StandaloneCluster, wait_for_slots

    with StandaloneCluster(workers=2, cores=1) as cluster:
        spark = cluster.session()
        try:
            spark.sparkContext.setLogLevel("ERROR")
            wait_for_slots(spark, 2)
            return run_table(expected, directory, spark)
        finally:
            spark.stop()


if __name__ == "__main__":
    # Imported, not run as __main__: the functions that are pickled must be those of the module.
    from gridflow.testing.conformance import main as run

    sys.exit(run())
