"""The identity of a training process, and its connection to the agent."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow._keras.agreement import Agreement
from gridflow._keras.profiling import Profiler
from gridflow._keras.spent import Spent
from gridflow._spec import backends, strategies
from gridflow._spec.cluster import ClusterSpec, Task
from gridflow._spec.roles import EVALUATOR, TRAINING_ROLES
from gridflow._training.meetings import MeetingClient
from gridflow._wire.commands import Inspect

if TYPE_CHECKING:
    from gridflow._feed.plan.counter import EpochCounter
    from gridflow._feed.store import SpoolReader
    from gridflow._keras.regrouping import Regrouping
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup


class TaskProcess:
    """What training code needs to know about its process.

    Attributes shared with the context are described there.

    `setup`: What the agent sent.
    `spec`: What the driver sent: the job's options.
    `training`: The options that say how to train.
    `facts`: Properties of the requested strategy.
    `agreement`: What all ranks do alike in their fits.
    `spent`: Where the time of its fits goes.
    `profiler`: Looks closer at some of their steps.
    """

    def __init__(self, setup: Setup, channel: Channel, inbox: Inbox) -> None:
        self.setup, self.channel, self.inbox = setup, channel, inbox
        self.spec = setup.spec
        self.training = self.spec.training
        self.task = Task.parse(setup.task)
        self.cluster_spec = ClusterSpec(setup.addresses)
        rank = self.cluster_spec.rank(self.task)
        self.rank: int = -1 if rank is None else rank
        self.num_workers = len(self.cluster_spec.ranks)
        self.generation: int = setup.generation
        self.facts = strategies.of(self.training.strategy)
        self.epoch_counters: list[EpochCounter] = []
        compares = self.training.distribution.local_steps is None
        self.agreement = Agreement(self.rank, compares=compares)
        self.spent = Spent(
            {
                "ranks": self.agreement.waited,
                "source": functools.partial(_of_sources, "source"),
                "coming": functools.partial(_of_sources, "coming"),
            }
        )
        backend = backends.of(self.training.backend)
        self.profiler = Profiler(backend, self.task, Path(setup.tensorboard))
        inbox.listen(Inspect, lambda told: self.profiler.ask(*told.profile))
        #: How fits go on after a rank was lost; None: they don't.
        self.regrouping: Regrouping | None = None
        self.meetings = MeetingClient(self.task, self.members, self.spec, channel, inbox)

    @property
    def is_chief(self) -> bool:
        """Whether this is the task that writes files which only one task should write."""
        return self.rank == 0

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates the training instead of taking part in it."""
        return self.task.role == EVALUATOR

    @property
    def trains(self) -> bool:
        """Whether this task takes part in the training."""
        return self.task.role in TRAINING_ROLES

    @property
    def members(self) -> int:
        """The number of ranks that run the function; 0 if this task doesn't run it."""
        ranks = [task.role in self.facts.runs_function for task in self.cluster_spec.ranks]
        return sum(ranks) if self.trains else 0

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, in equal steps."""
        return self.facts.exchanges_gradients and self.num_workers > 1

    def spool(self, dataset: str, *, growing: bool = False) -> SpoolReader:
        """Return a reader of this rank's rows, complete or still growing."""
        from gridflow._feed.store import SpoolReader

        return SpoolReader(Path(self.setup.spool), dataset, growing=growing)


def _of_sources(what: str) -> float:
    """Return what sources of rows spent time on, without importing them before others."""
    source = sys.modules.get("gridflow._feed.dataset.source")
    return 0.0 if source is None else float(source.spent(what))
