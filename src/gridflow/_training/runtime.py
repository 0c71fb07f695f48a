"""gridflow's own view of a training process."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._keras.due import Due
from gridflow._keras.resume.writer import Writer
from gridflow._training import modes, process
from gridflow._training.process import TaskProcess
from gridflow._wire import child, commands, reports

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gridflow._feed.dataset.stream import StreamSource
    from gridflow._keras.data_service import ServiceAccount
    from gridflow._spec.place import Place
    from gridflow._training.inbox import Inbox
    from gridflow._wire.channel import Channel
    from gridflow._wire.child import Setup

#: Between two reports of what was read through a data service.
_ACCOUNT_SECONDS: Final = 1.0


class TaskRuntime(TaskProcess):
    """gridflow's own view of a training process, behind the `TrainingContext`.

    It implements `gridflow._keras.runtime.Runtime` for the Keras part. Attributes shared with the
    context are described there.

    `mode`: How this process trains.
    `folder`: The task's folder, which belongs to the user.
    """

    def __init__(self, setup: Setup, channel: Channel, inbox: Inbox) -> None:
        super().__init__(setup, channel, inbox)
        self.folder = Path.cwd()
        self.resume_from = Path(setup.resume) if setup.resume else None
        self.stream: StreamSource | None = None
        self.pulled: dict[str, str] = {}
        #: Datasets of the data service so far, and what was read of them.
        self.services = 0
        self.accounts: list[ServiceAccount] = []
        self._told_at = 0.0
        self._has_hurried = False
        self.due = inbox.due = Due(channel.send, self.spec.deadlines.step)
        self.writer = Writer()
        if not self.facts.hands_out_steps:  # of which some are always in progress
            inbox.listen(
                commands.AskToSave,
                lambda told: self.agreement.ask(stays=told.stays, at_end=told.at_end),
            )
        self._last = reports.Progress(0, 0, None, "idle", 0, {})
        self.mode = modes.mode_of(self)
        if self.spec.max_replacements and self.trains_together:
            # Here, as they bring libraries with threads.
            from gridflow._keras.regrouping import Regrouping
            from gridflow._training.groups import cpu

            self.regrouping = Regrouping(self, cpu.Groups(self), is_new=setup.view > 0)

    @property
    def work_dir(self) -> Path:
        """The folder for gridflow's own files, separate from the user's."""
        own = self.folder / process.OWN_FOLDER
        own.mkdir(exist_ok=True)
        return own

    @property
    def tensorboard_dir(self) -> Path | None:
        """Folder for TensorBoard's event files, if this task writes some."""
        writes_events = self.is_chief or self.is_evaluator
        return Path(self.setup.tensorboard) if writes_events else None

    @property
    def group(self) -> Any:
        """The strategy that trains a model here, or None."""
        return self.mode.strategy if self.trains else None

    def trainer(self, model: Any) -> Any:
        """Return the trainer of a model for ``ctx.fit``."""
        return self.mode.trainer(model)

    @property
    def saves_sections(self) -> bool:
        """Whether checkpoints are made only at the ends of a stream's sections."""
        return self._label is not None

    @property
    def _label(self) -> str | None:
        news = self.inbox.latest(child.StreamNews) if self.stream is not None else None
        return None if news is None else news.label

    def hurry(self) -> None:
        """Make the agent fetch rows as fast as it can: training needs them now."""
        if not self._has_hurried:
            self._has_hurried = True
            self.channel.send(child.RowsAwaited())

    def progress(self, **fields: Any) -> None:
        """Report progress (see `gridflow._keras.runtime.Runtime`)."""
        fields["logs"] = {name: float(value) for name, value in fields["logs"].items()}
        self._last = reports.Progress(**fields, spent=self.spent.report())
        self.channel.send(self._last)
        if time.monotonic() - self._told_at > _ACCOUNT_SECONDS:
            self._tell_accounts()

    def _tell_accounts(self) -> None:
        """Say what was read through the data service, and how long that was waited for."""
        self._told_at = time.monotonic()
        for number, account in enumerate(self.accounts):
            use = account.read()
            self.channel.send(
                reports.DataServed(number, use.waited, use.elapsed, dict(use.elements))
            )

    def epoch_end(
        self, epoch: int, logs: Mapping[str, float], *, fit: int = 0, restored: bool = False
    ) -> None:
        """Send an epoch's results."""
        values = {name: float(value) for name, value in logs.items()}
        self.channel.send(reports.EpochEnded(epoch, values, fit, restored))

    def mark(self, place: Place) -> None:
        """Report the position of a stream at a checkpoint."""
        if self.stream is not None:
            source = self.stream
            rows, section = source.rows_trained(), source.consumer.section + self.saves_sections
            self.channel.send(child.StreamMark(source.reader.dataset, place, rows, section))

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Hand a finished checkpoint over."""
        self.channel.send(child.MadeCheckpoint(str(path), place, self._label, is_awaited))

    def not_finite(self, place: Place, variable: str, *, is_awaited: bool = False) -> None:
        """Report that there is no checkpoint here, and why."""
        self.channel.send(reports.NotFinite(place, variable))
        if is_awaited:  # the group goes on from the one before
            self.channel.send(reports.Saved())

    def rest(self) -> None:
        """Make no further step: wait until the driver ends this process."""
        self.close()
        threading.Event().wait()

    def close(self) -> None:
        """Report that no further steps will follow."""
        self.due.stop()
        self._tell_accounts()
        self.channel.send(replace(self._last, steps_per_epoch=None, phase="idle", rows=0))
