"""What a run returns: the function's value, the model, the record of the run."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from gridflow.cluster import Task
from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

    from gridflow.coordinator.run import Outcome
    from gridflow.feed.ledger import Ledger
    from gridflow.ml.model import TrainedModel
    from gridflow.reports import Attempt


class Result:
    """What `TensorflowDistributor.run` returns.

    Attributes
    ----------
    job_dir : Path
        Everything that the run left in the driver: logs, results, TensorBoard's event files.
    ledger : Ledger
        The account of rows per dataset, rank and epoch.
    attempts : tuple of Attempt
        The generations that it took, the last one being the one that succeeded.
    tensorboard_url : str or None
        Where TensorBoard was served during the run.
    """

    def __init__(self, outcome: Outcome, job_dir: Path) -> None:
        self._outcome = outcome
        self.job_dir = job_dir
        self.ledger: Ledger = outcome.ledger
        self.attempts: tuple[Attempt, ...] = outcome.attempts
        self.tensorboard_url: str | None = outcome.tensorboard_url

    @cached_property
    def value(self) -> Any:
        """What the chief's function returned; a model as a `TrainedModel`.

        Unpickled when first asked for.
        """
        from gridflow.ml.model import MODEL_KINDS, TrainedModel

        header = self._outcome.result
        folder = self.job_dir / "result"
        if header.get("kind") in MODEL_KINDS:
            return TrainedModel(header, folder)
        from gridflow.keras import results

        return results.unpack(header, folder)

    @property
    def model(self) -> TrainedModel:
        """The model that the function returned.

        Raises
        ------
        GridflowError
            It returned something else.
        """
        from gridflow.ml.model import TrainedModel

        if not isinstance(self.value, TrainedModel):
            raise GridflowError(
                f"the training function returned {type(self.value).__name__}, not a Keras model: "
                "end it with 'return model' to have result.model."
            )
        return self.value

    @property
    def history(self) -> dict[str, list[float]]:
        """Losses and metrics by epoch, as in Keras's ``History.history``."""
        epochs = [logs for _, logs in sorted(self._outcome.history.items())]
        names = dict.fromkeys(name for logs in epochs for name in logs)
        return {name: [logs[name] for logs in epochs if name in logs] for name in names}

    @property
    def evaluation(self) -> list[dict[str, float]]:
        """What the evaluator found of each checkpoint that it took up, in order.

        ``epoch`` and ``step`` say when the checkpoint was made: after that many complete epochs,
        and that many steps of the next. The rest are losses and metrics by name.
        """
        found = sorted(self._outcome.evaluation.items())
        return [{"epoch": epoch, "step": step, **logs} for (epoch, step), logs in found]

    @property
    def tensorboard_dir(self) -> Path:
        """Folder of TensorBoard's event files: ``tensorboard --logdir`` takes it."""
        return self.job_dir / "tensorboard"

    def logs(self, rank: int) -> str:
        """Return everything that a rank printed, in all generations.

        Raises
        ------
        InvalidArgument
            There is no such rank.
        """
        paths = list(self._outcome.log_paths.values())
        if not 0 <= rank < len(paths):
            raise InvalidArgument(f"rank must be between 0 and {len(paths) - 1}; got {rank!r}.")
        return paths[rank].read_text(encoding="utf-8")

    def log_path(self, task: str) -> Path:
        """Return the log file of a task such as ``worker:1``."""
        return self._outcome.log_paths[Task.parse(task)]

    def __repr__(self) -> str:
        kind = self._outcome.result.get("kind", "nothing")
        return f"Result({kind}, {len(self.attempts)} attempt(s), job_dir={str(self.job_dir)!r})"
