"""The progress of a running job, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridflow._wire.failures import PREEMPTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._spec.place import Place
    from gridflow._wire.failures import TaskFailure


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
    """

    place: Place
    steps_per_epoch: int | None
    phase: str
    logs: Mapping[str, float]


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
    failures : tuple of TaskFailure
        The failures that caused the restarts.
    tensorboard_url : str or None
    """

    state: str
    generation: int
    tasks: Mapping[str, TaskProgress]
    epochs: int
    failures: tuple[TaskFailure, ...]
    tensorboard_url: str | None

    @property
    def preemptions(self) -> int:
        """How many of the failures were executors preempted with notice."""
        return sum(failure.kind == PREEMPTED for failure in self.failures)
