"""Simulates, within one process, a training process that dies and resumes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, ClassVar

from gridflow._keras.agreement import Agreement
from gridflow._keras.due import Due, Spent
from gridflow._keras.resume.writer import Writer
from gridflow._keras.runtime import Profiler
from gridflow._spec import backends
from gridflow._spec.option_groups import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gridflow._spec.place import Place


class DiedError(Exception):
    """Raised to end training in the resume case."""


class Life:
    """The runtime of one simulated process of the resume case.

    Parameters
    ----------
    ctx
        The real context.
    committed : Path
        Where the chief commits its checkpoints and all ranks find them.
    resume_from : Path, optional
        The checkpoint to resume from.
    """

    tensorboard_dir = group = regrouping = None
    pulled: ClassVar[Mapping[str, str]] = {}

    def __init__(self, ctx: Any, committed: Path, resume_from: Path | None = None) -> None:
        self._ctx = ctx
        self._committed = committed
        self._before = len(ctx.epoch_counters)
        self.rank: int = ctx.rank
        self.num_workers: int = ctx.num_workers
        self.is_chief: bool = ctx.is_chief
        self.chief_changes = False
        self.generation = 0 if resume_from is None else 1
        self.work_dir: Path = ctx.work_dir
        self.resume_from = resume_from
        self.trains_together: bool = ctx.num_workers > 1
        self.due = Due(lambda _: None, None)
        self.agreement = Agreement()
        self.spent = Spent({"ranks": self.agreement.waited, "source": float})
        self.profiler = Profiler(backends.of("tensorflow"), ctx.task, ctx.work_dir)
        self.writer = Writer()
        # The second process must find the last checkpoint of the first, not one of its own.
        every = 1 if resume_from is None else None
        self.training = TrainingOptions("none", seed=ctx.seed, checkpoint_every=every)

    def trainer(self, model: Any) -> Any:
        """Not used: the case calls ``model.fit``."""
        raise AssertionError(f"ctx.fit isn't expected here; got {model}")

    @property
    def epoch_counters(self) -> Sequence[Any]:
        """Epoch counters of the datasets made since this runtime was created."""
        return list(self._ctx.epoch_counters[self._before :])

    @property
    def saves_sections(self) -> bool:
        """Always False: there are no sections."""
        return False

    def progress(self, **report: Any) -> None:
        """Ignore reports of progress."""

    def epoch_end(self, epoch: int, logs: Mapping[str, float], **fit: Any) -> None:
        """Ignore the end of an epoch; the History records it."""

    def mark(self, place: Place) -> None:
        """Ignore marks; they matter for streams only."""

    def rest(self) -> None:
        """Do nothing."""

    def not_finite(self, place: Place, variable: str, *, is_awaited: bool = False) -> None:
        """Fail: the cases' numbers are finite."""
        del is_awaited
        raise AssertionError(f"{variable} isn't finite at {place}")

    def checkpoint(self, path: Path, place: Place, *, is_awaited: bool = False) -> None:
        """Commit a checkpoint of the first process; ignore those of the second."""
        del place, is_awaited
        if self.resume_from is None:
            beside = self._committed.with_suffix(".new")
            shutil.copyfile(path, beside)
            beside.replace(self._committed)
