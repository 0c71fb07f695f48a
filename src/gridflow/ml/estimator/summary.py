"""The summary of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gridflow._feed.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from gridflow._result import Result


@dataclass(frozen=True)
class KerasTrainingSummary:
    """The summary of a `KerasModel`.

    Attributes
    ----------
    history : dict of str to list of float
        Losses and metrics by epoch, those of validation as ``val_…``.
    ledger : Ledger
        Row counts.
    result : Result or None
        Logs, attempts and event files of the job; None for a model that was loaded.
    """

    history: dict[str, list[float]]
    ledger: Ledger
    result: Result | None = None

    @classmethod
    def of(cls, result: Result) -> KerasTrainingSummary:
        """Return the summary of a job."""
        return cls(result.history, result.ledger, result)

    @property
    def totalEpochs(self) -> int:  # noqa: N802 (as Spark writes attributes)
        """Number of trained epochs; fewer than requested if a callback stopped training."""
        return max(map(len, self.history.values()), default=0)

    def plot(self) -> Figure:
        """Draw the learning curve, as `gridflow.Result.plot` does."""
        from gridflow.ml.plotting import learning_curve

        return learning_curve(self.history)

    def to_dict(self) -> dict[str, Any]:
        """Return history and ledger as a JSON-compatible dict."""
        return {"history": self.history, "ledger": self.ledger.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KerasTrainingSummary:
        """Restore from the result of `to_dict`."""
        return cls(dict(data["history"]), Ledger.from_dict(data["ledger"]))

    def _repr_html_(self) -> str:
        """Return the notebook representation."""
        from gridflow._spec.markup import history_view

        return history_view(self.history) + self.ledger._repr_html_()
