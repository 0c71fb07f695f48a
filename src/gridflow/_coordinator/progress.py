"""How far a running job has come, as data."""

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
    """The last that was heard of a task's training.

    Attributes
    ----------
    place : Place
        Fit, epoch and step: what is complete.
    steps_per_epoch : int or None
        None where nobody knows.
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
    """Where a job stands.

    Attributes
    ----------
    state : str
        As `JobHandle.state`.
    generation : int
        0, and one more after each restart.
    tasks : mapping of str to TaskProgress
        By task, such as ``worker:0``; those that have reported a step.
    epochs : int
        Complete ones, of all calls of ``fit``.
    failures : tuple of TaskFailure
        What ended earlier generations.
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
        """How many of those were executors that were taken back with notice."""
        return sum(failure.kind == PREEMPTED for failure in self.failures)
