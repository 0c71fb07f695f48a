"""Does distributed training compute what one process computes? A table of answers.

Every cell trains, evaluates, predicts, saves or resumes a small model in one way, under one
strategy, with one flavour of Keras, and compares with one plain process of that flavour on the
same global batches (without gridflow: arrays given to ``fit``). The number in a cell is the
largest difference of any weight or output. Where batches are normalised, or rows dropped, per
replica (plain BatchNormalization, Dropout), several replicas can't compute the same: there the
losses are compared, and all ranks must hold the same weights and statistics.

``python -m gridflow.testing.conformance`` prints the table.

To run the cases on a launcher of your own, give `column` to it as the training function, with
`rows` as its data, and hand what all ranks return to `compare`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from gridflow.testing.harness import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow.testing.harness import StrategyName

FLAVOURS: Final = ("keras", "tf_keras")
#: Strategy and how many processes it gets.
STRATEGIES: Final[Mapping[StrategyName, int]] = {
    "none": 1,
    "mirrored": 1,
    "multi_worker_mirrored": 2,
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


def column(ctx: Any, flavour: str, shared: str | None) -> dict[Cell, Result]:
    """Be one rank of all cells of one strategy and flavour; a training function.

    Parameters
    ----------
    ctx
        The context of a training function; its data are `rows` for as many workers.
    flavour : {"keras", "tf_keras"}
    shared : str, optional
        A directory that all ranks see, for checkpoints; without it nothing is resumed.
    """
    lab = Lab(importlib.import_module(flavour), ctx.strategy)
    found: dict[Cell, Result] = {}
    for model in MODELS:
        for case, result in results(ctx, lab, model, shared).items():
            found[case, model] = result
    for case, result in data_results(ctx, lab).items():
        found[case, MODELS[0]] = result
    return found


def plain(ctx: Any, flavour: str) -> dict[Cell, Result]:
    """Compute what all cells of a flavour are compared with; one process, strategy ``none``."""
    lab = Lab(importlib.import_module(flavour), ctx.strategy)
    found: dict[Cell, Result] = {}
    for model in MODELS:
        for case, result in plain_results(lab, model).items():
            found[case, model] = result
    for case, result in plain_data_results(lab).items():
        found[case, MODELS[0]] = result
    return found


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


def run_table(at_once: int = 2) -> dict[tuple[StrategyName, str], dict[Cell, Outcome]]:
    """Run everything, `at_once` jobs beside one another, and return the outcomes by column."""
    with (
        tempfile.TemporaryDirectory(prefix="gridflow-conformance-") as text,
        concurrent.futures.ThreadPoolExecutor(at_once) as pool,
    ):
        expected = {
            flavour: pool.submit(
                run_job, functools.partial(plain, flavour=flavour), cures=False, timeout=_TIMEOUT
            )
            for flavour in FLAVOURS
        }
        columns = {
            (strategy, flavour): pool.submit(_run_column, strategy, flavour, Path(text))
            for strategy in STRATEGIES
            for flavour in FLAVOURS
        }
        return {
            (strategy, flavour): compare(
                ranks.result(),
                expected[flavour].result()[0],
                flavour,
                1 if strategy == "none" else 2,
            )
            for (strategy, flavour), ranks in columns.items()
        }


def _run_column(strategy: StrategyName, flavour: str, directory: Path) -> list[Any]:
    shared = directory / f"{strategy}-{flavour}"
    shared.mkdir()
    workers = STRATEGIES[strategy]
    return run_job(
        functools.partial(column, flavour=flavour, shared=str(shared)),
        workers,
        strategy,
        data=rows(workers),
        timeout=_TIMEOUT,
    )


def table(outcomes: Mapping[tuple[StrategyName, str], Mapping[Cell, Outcome]]) -> str:
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


def main() -> int:
    """Print the table; return 1 if a cell failed."""
    outcomes = run_table()
    sys.stdout.write(
        "Largest difference to one process on the same global batches "
        f"(at most {TOLERANCE:.0e}; where replicas can't compute the same, of the loss):\n\n"
        f"{table(outcomes)}\n"
    )
    failed = [o for column in outcomes.values() for o in column.values() if not o.passed]
    count = sum(len(column) for column in outcomes.values())
    sys.stdout.write(f"\n{count - len(failed)} of {count} cells pass.\n")
    return 1 if failed else 0


if __name__ == "__main__":
    # Imported, not run as __main__: the functions that are pickled must be those of the module.
    from gridflow.testing.conformance import main as run

    sys.exit(run())
