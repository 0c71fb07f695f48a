"""The training process as a task of its job: what it was told, and its way to the agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridflow.keras.due import Due
from gridflow.keras.resume.pause import Pause
from gridflow.keras.resume.writer import Writer
from gridflow.keras.stopping import Stopping
from gridflow.keras.together import Together
from gridflow.spec import strategies
from gridflow.spec.cluster import ClusterSpec, Task
from gridflow.spec.roles import EVALUATOR, TRAINING_ROLES
from gridflow.training import leftovers, modes
from gridflow.training.meetings import MeetingClient
from gridflow.wire import child, commands, reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow.feed.dataset.stream import StreamSource
    from gridflow.feed.plan.counter import EpochCounter
    from gridflow.feed.store import SpoolReader
    from gridflow.spec.place import Place
    from gridflow.training.context import TrainingContext
    from gridflow.training.inbox import Inbox
    from gridflow.wire.channel import Channel
    from gridflow.wire.child import Setup


class TaskRuntime:
    """What gridflow itself uses of a training process, behind the `TrainingContext`.

    To the Keras part it is its `gridflow.keras.runtime.Runtime`. Attributes that the context has,
    too, are described there.

    Attributes
    ----------
    setup : Setup
        What the agent said.
    channel : Channel
    inbox : Inbox
    facts : StrategyFacts
        Of the strategy that was asked for.
    mode : Mode
        How this process trains.
    folder : Path
        The task's own, which is the user's.
    context : TrainingContext
        Made of this, see `gridflow.training.context.make_context`.
    """

    context: TrainingContext

    def __init__(self, setup: Setup, channel: Channel, inbox: Inbox) -> None:
        self.setup, self.channel, self.inbox = setup, channel, inbox
        self.task = Task.parse(setup.task)
        self.cluster_spec = ClusterSpec(setup.addresses)
        rank = self.cluster_spec.rank(self.task)
        self.rank: int = -1 if rank is None else rank
        self.num_workers = len(self.cluster_spec.ranks)
        self.generation: int = setup.generation
        self.folder = Path.cwd()
        self.seed: int | None = setup.seed
        self.checkpoint_every: int | None = setup.checkpoint_every
        self.resume_from = Path(setup.resume) if setup.resume else None
        writes_events = self.is_chief or self.is_evaluator
        self.tensorboard_dir = Path(setup.tensorboard) if writes_events else None
        self.epoch_counters: list[EpochCounter] = []
        self.stream: StreamSource | None = None
        self.pulled: dict[str, str] = {}
        self._has_hurried = False
        self.facts = strategies.of(setup.strategy)
        self.meetings = MeetingClient(self, self._members)
        self.together = Together(channel.send, is_chief=self.is_chief)
        inbox.listen(commands.ChiefWrites, self.together.take)
        self.stopping = Stopping(channel.send)
        inbox.listen(commands.AskToStop, self.stopping.ask)
        inbox.listen(commands.StopAt, self.stopping.agree)
        self.due = inbox.due = Due(channel.send, setup.step_timeout)
        self.pause = Pause()
        self.writer = Writer()
        inbox.listen(commands.AskToSave, lambda _: self._asked_to_save())
        inbox.listen(commands.SaveAfter, lambda told: self.pause.agree(told.step, stays=told.stays))
        self._last = reports.Progress(0, 0, None, "idle", 0, {})
        self.backend: str = setup.backend
        self.mode = modes.mode_of(self)

    @property
    def work_dir(self) -> Path:
        """For files of gridflow's own, apart from those of the user's."""
        own = self.folder / leftovers.OWN_FOLDER
        own.mkdir(exist_ok=True)
        return own

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
    def _members(self) -> int:
        """How many ranks run the function, if this one does."""
        ranks = [task.role in self.facts.runs_function for task in self.cluster_spec.ranks]
        return sum(ranks) if self.trains else 0

    @property
    def group(self) -> Any:
        """The strategy by which a model is trained here, None where none is."""
        return self.mode.strategy if self.trains else None

    def trainer(self, model: Any) -> Any:
        """Return what trains a model by ``ctx.fit``."""
        return self.mode.trainer(model)

    @property
    def trains_together(self) -> bool:
        """Whether several ranks train one model, and make equal steps."""
        return self.facts.exchanges_gradients and self.num_workers > 1

    def spool(self, dataset: str, *, growing: bool = False) -> SpoolReader:
        """Return the rows of a dataset that have come to this rank, all or while they come."""
        from gridflow.feed.store import SpoolReader

        return SpoolReader(Path(self.setup.spool), dataset, growing=growing)

    @property
    def saves_sections(self) -> bool:
        """Whether checkpoints are made where a section of a stream ends, and nowhere else."""
        return self._label is not None

    @property
    def _label(self) -> str | None:
        news = self.inbox.latest(child.StreamNews) if self.stream is not None else None
        return None if news is None else news.label

    def hurry(self) -> None:
        """Let the agent bring rows as fast as it can: the training needs them now."""
        if not self._has_hurried:
            self._has_hurried = True
            self.channel.send(child.RowsAwaited())

    def progress(self, **fields: Any) -> None:
        """Say how far the training has come (see `gridflow.keras.runtime.Runtime`)."""
        fields["logs"] = {name: float(value) for name, value in fields["logs"].items()}
        self._last = reports.Progress(**fields)
        self.channel.send(self._last)

    def epoch_end(
        self, epoch: int, logs: Mapping[str, float], *, fit: int = 0, restored: bool = False
    ) -> None:
        """Send an epoch's results."""
        values = {name: float(value) for name, value in logs.items()}
        self.channel.send(reports.EpochEnded(epoch, values, fit, restored))

    def mark(self, place: Place) -> None:
        """Say where a stream stands at a checkpoint."""
        if self.stream is not None:
            source = self.stream
            rows, section = source.rows_trained(), source.consumer.section + self.saves_sections
            self.channel.send(child.StreamMark(source.name, place, rows, section))

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Hand a finished checkpoint over."""
        self.channel.send(child.MadeCheckpoint(str(path), place, self._label, is_awaited))

    def rest(self) -> None:
        """Make no further step, where the driver wants none, until it ends this process."""
        if self.pause.stays:
            self.close()
            self.pause.stay()

    def _asked_to_save(self) -> None:
        # Where a chief hands out steps, some are under way at any time.
        cannot = self.saves_sections or self.facts.hands_out_steps
        self.channel.send(reports.CanSave(None if cannot else self.pause.ask()))

    def close(self) -> None:
        """Say that no further steps are to be expected."""
        self.due.stop()
        self.channel.send(replace(self._last, steps_per_epoch=None, phase="idle", rows=0))
