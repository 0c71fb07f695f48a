"""Compare the conformance results of all ranks with those of one process, and format the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from conformance import asynchronous
from conformance.cases import MODELS, CaseResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridflow._spec.strategies import Strategy

#: Largest difference in a weight or output that reordered float32 arithmetic can explain.
TOLERANCE: Final = 1e-5
#: Largest relative difference in a loss where replicas can't compute the same values.
LOSS_TOLERANCE: Final = 0.35

Cell = tuple[str, str]


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell.

    Attributes
    ----------
    difference : float
        Largest difference in a weight or output; with `by_loss`, the largest relative difference in
        a loss.
    by_loss : bool
        Whether only losses can be compared.
    ranks_agree : bool
        Whether weights and statistics are bitwise identical on all ranks.
    limit : float
        Largest difference allowed.
    """

    difference: float
    by_loss: bool
    ranks_agree: bool
    limit: float = TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether the ranks agree and the difference is within the limit."""
        return self.ranks_agree and self.difference <= self.limit

    def __str__(self) -> str:
        text = f"loss {self.difference:.0%}" if self.by_loss else f"{self.difference:.1e}"
        return text + ("" if self.ranks_agree else " ranks differ") + ("" if self.passed else " ✗")


def compare(
    ranks: Sequence[Mapping[Cell, CaseResult]],
    expected: Mapping[Cell, CaseResult],
    flavour: str,
    replicas: int,
) -> dict[Cell, CellOutcome]:
    """Compare the results of all ranks with those of one process.

    Parameters
    ----------
    ranks : sequence of dict
        The results of `conformance.columns.column`, one per rank.
    expected : dict
        The results of `conformance.columns.plain`.
    flavour : str
        Of Keras on TensorFlow, or another backend of Keras 3.
    replicas : int
        Total number of replicas over all ranks.
    """
    outcomes: dict[Cell, CellOutcome] = {}
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
        if cell in asynchronous.CELLS:
            by_loss, limit = True, asynchronous.CELLS[cell]
        else:
            limit = LOSS_TOLERANCE if by_loss else TOLERANCE
        outcomes[cell] = CellOutcome(max(differences), by_loss, agree, limit)
    return outcomes


def is_compared_by_loss(cell: Cell, flavour: str, replicas: int) -> bool:
    """Return whether a cell can't give the same numbers as one process.

    Each replica normalises its own part of a batch and drops out different units. In tf_keras,
    Dropout's random state lives inside TensorFlow's operations and starts over in each traced
    function, and therefore in a resumed ``fit`` and in a custom loop.
    """
    case, model = cell
    if flavour == "jax":  # a global batch is one array, however it is sharded
        return False
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


def table(outcomes: Mapping[tuple[Strategy, str], Mapping[Cell, CellOutcome]]) -> str:
    """Return the outcomes as a text table with a row for each case and model."""
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
