"""Which task a training process is, and its way to the agent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gridflow._spec import strategies
from gridflow._spec.cluster import ClusterSpec, Task
from gridflow._spec.roles import EVALUATOR, TRAINING_ROLES
from gridflow._training.meetings import MeetingClient

if TYPE_CHECKING:
    from gridflow._feed.plan.counter import EpochCounter
    from gridflow._feed.store import SpoolReader
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup


class TaskProcess:
    """What all that trains has to know of the process that it is in.

    Attributes that the context has, too, are described there.

    Attributes
    ----------
    setup : Setup
        What the agent said.
    spec : JobSpec
        What the driver said: the job's options.
    training : TrainingOptions
        Those of them that say how to train.
    channel : Channel
    inbox : Inbox
    facts : StrategyFacts
        Of the strategy that was asked for.
    meetings : MeetingClient
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
        self.meetings = MeetingClient(self.task, self.members, self.spec, channel, inbox)

    @property
    def is_chief(self) -> bool:
        """Whether this task writes what is to be written once."""
        return self.rank == 0

    @property
    def is_evaluator(self) -> bool:
        """Whether this task watches the training instead of taking part."""
        return self.task.role == EVALUATOR

    @property
    def trains(self) -> bool:
        """Whether this task takes part in the training."""
        return self.task.role in TRAINING_ROLES

    @property
    def members(self) -> int:
        """How many ranks run the function, if this one does; else 0."""
        ranks = [task.role in self.facts.runs_function for task in self.cluster_spec.ranks]
        return sum(ranks) if self.trains else 0

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, and make equal steps."""
        return self.facts.exchanges_gradients and self.num_workers > 1

    def spool(self, dataset: str, *, growing: bool = False) -> SpoolReader:
        """Return the rows of a dataset that have come to this rank, all or while they come."""
        from gridflow._feed.store import SpoolReader

        return SpoolReader(Path(self.setup.spool), dataset, growing=growing)
