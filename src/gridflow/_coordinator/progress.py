"""The progress of a running job, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gridflow._spec.place import Place
from gridflow._wire.failures import PREEMPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._spec.option_groups import DataServiceUse
    from gridflow._wire.failures import TaskFailure
    from gridflow._wire.reports import Progress


@dataclass(frozen=True)
class TaskProgress:
    """The last reported progress of a task.

    Attributes
    ----------
    place : Place
        The fit, epoch and step that are complete.
    steps_per_epoch : int or None
        None if unknown.
    phase : str
        ``train``, ``test``, ``predict`` or ``idle``.
    logs : mapping of str to float
        Losses and metrics so far in this epoch.
    seconds : mapping of str to float
        Where the time of its fits went, without the first step of each: ``total``, and of that
        ``rows`` (waiting for batches), ``ranks`` (for other ranks), ``callbacks`` (of which
        ``batch_callbacks`` are part of each step), ``checkpoints`` and ``validation``; the rest is
        computing. Beside them ``source`` (reading rows and making batches, perhaps meanwhile),
        ``arriving`` (waiting for all rows before the first step), the number of ``steps`` and the
        ``rows_a_step``. Waiting for other ranks can't be told from computing under JAX, nor where
        gradients go through NCCL; waiting for batches not in loops of one's own.
    rows : int
        Rows of the steps so far, also of those that were made again after a restart.
    """

    place: Place
    steps_per_epoch: int | None
    phase: str
    logs: Mapping[str, float]
    seconds: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0

    @classmethod
    def of(cls, report: Progress, rows: int, inflow: Mapping[str, float]) -> TaskProgress:
        """Return it from a report, the rows in all, and how the rows of its agent came."""
        return cls(
            Place(report.fit, report.epoch, report.step),
            report.steps_per_epoch,
            report.phase,
            report.logs,
            {**report.spent, **inflow} if report.spent else report.spent,
            rows,
        )


@dataclass(frozen=True)
class JobReport:
    """The progress of a job.

    Attributes
    ----------
    state : str
        As `JobHandle.state`.
    generation : int
        Number of restarts.
    tasks : mapping of str to TaskProgress
        By task, such as ``worker:0``; only tasks that have reported a step.
    epochs : int
        Number of complete epochs, over all calls of ``fit``.
    history : dict of str to list of float
        Losses and metrics of those epochs; of the last ``fit``, if there were several.
    failures : tuple of TaskFailure
        The failures that caused the restarts.
    replaced : tuple of TaskFailure
        Why processes of workers were replaced while the others went on.
    away : tuple of str
        The workers without which the others train at the moment (``num_workers=(2, 8)``).
    sizes : tuple of (float, int)
        As `Attempt.sizes`, of this generation so far.
    tensorboard_url : str or None
    data_service : mapping of str to DataServiceUse
        By task; those that read through `TrainingContext.data_service`.
    bottleneck : str
        What holds the training back, in a sentence, with a remedy where one is known; empty for
        the first ten steps.
    """

    state: str
    generation: int
    tasks: Mapping[str, TaskProgress]
    epochs: int
    history: dict[str, list[float]]
    failures: tuple[TaskFailure, ...]
    tensorboard_url: str | None
    data_service: Mapping[str, DataServiceUse] = field(default_factory=dict)
    bottleneck: str = ""
    replaced: tuple[TaskFailure, ...] = ()
    away: tuple[str, ...] = ()
    sizes: tuple[tuple[float, int], ...] = ()

    @property
    def preemptions(self) -> int:
        """How many of the failures were executors preempted with notice."""
        return sum(failure.kind == PREEMPTED for failure in self.failures)


def histories(
    epochs: Mapping[tuple[int, int], Mapping[str, float]],
) -> list[dict[str, list[float]]]:
    """Return the losses and metrics of each ``fit``, by epoch, from those of (fit, epoch)."""
    fits: dict[int, list[Mapping[str, float]]] = {}
    for (fit, _), logs in sorted(epochs.items()):
        fits.setdefault(fit, []).append(logs)
    return [
        {
            name: [logs[name] for logs in those if name in logs]
            for name in dict.fromkeys(name for logs in those for name in logs)
        }
        for those in fits.values()
    ]


def last_history(epochs: Mapping[tuple[int, int], Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the last of `histories`; empty if there is none."""
    found = histories(epochs)
    return found[-1] if found else {}
