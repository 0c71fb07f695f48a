"""A training process that dies and comes back, within one process: for the cells of a resume."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from gridflow._keras.due import Due
from gridflow._keras.resume.pause import Pause
from gridflow._keras.resume.writer import Writer
from gridflow._keras.stopping import Stopping
from gridflow._keras.together import Together
from gridflow._spec.option_groups import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gridflow._spec.place import Place


class DiedError(Exception):
    """What ends the training of the case of a resume."""


class Life:
    """A runtime of its own for each life of the case of a resume, in one process.

    Parameters
    ----------
    ctx
        The context that it stands in for.
    committed : Path
        Where the chief commits its checkpoints and all ranks find them.
    resume_from : Path, optional
        The checkpoint to go on from.
    """

    tensorboard_dir = group = None
    pulled: ClassVar[Mapping[str, str]] = {}

    def __init__(self, ctx: Any, committed: Path, resume_from: Path | None = None) -> None:
        self._ctx = ctx
        self._committed = committed
        self._before = len(ctx.epoch_counters)
        self.rank: int = ctx.rank
        self.num_workers: int = ctx.num_workers
        self.is_chief: bool = ctx.is_chief
        self.generation = 0 if resume_from is None else 1
        self.work_dir: Path = ctx.work_dir
        self.resume_from = resume_from
        self.trains_together: bool = ctx.num_workers > 1
        self.due = Due(lambda _: None, None)
        self.stopping = Stopping(lambda _: None)
        self.together = Together(lambda _: None, is_chief=ctx.is_chief)
        self.pause = Pause()
        self.writer = Writer()
        # The second life must find the first one's last checkpoint, and not its own.
        every = 1 if resume_from is None else None
        self.training = TrainingOptions("none", seed=ctx.seed, checkpoint_every=every)

    def trainer(self, model: Any) -> Any:
        """Return what trains a model by ``ctx.fit``."""
        raise AssertionError(f"nobody trains {model} so here")

    @property
    def epoch_counters(self) -> Sequence[Any]:
        """Counters of the datasets that were made in this life."""
        return list(self._ctx.epoch_counters[self._before :])

    @property
    def saves_sections(self) -> bool:
        """There are none here."""
        return False

    def progress(self, **report: Any) -> None:
        """Drop it: nobody watches."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float], **fit: Any) -> None:
        """Drop it: the History has it."""

    def mark(self, place: Place) -> None:
        """Ignore it: what is told here has no stream."""

    def rest(self) -> None:
        """Nobody wants it here."""

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Commit the first life's checkpoints."""
        del place, is_awaited
        if self.resume_from is None:
            beside = self._committed.with_suffix(".new")
            shutil.copyfile(path, beside)
            beside.replace(self._committed)
