"""The checkpoints of a job, as committed in the driver.

They travel from the chief to the driver and from there to every rank of the next generation, so no
file system that all hosts see is needed. A checkpoint counts once it was renamed into place.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gridflow.coordinator.server import inside

if TYPE_CHECKING:
    from pathlib import Path

_NAME: Final = re.compile(r"checkpoint-(\d{6})-(\d{9})\.npz")
_WORKERS: Final = "num_workers"
#: The newest one, and the one before should the newest prove unreadable.
_KEPT: Final = 2


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: taken in ``epoch`` after ``step`` of its steps (both from 0)."""

    name: str
    epoch: int
    step: int


class CheckpointStore:
    """Checkpoints in one folder.

    Parameters
    ----------
    folder : Path
        Made when missing.
    num_workers : int, default 1
        How many tasks train; noted beside the checkpoints.
    """

    def __init__(self, folder: Path, num_workers: int = 1) -> None:
        self.folder = folder
        self._num_workers = num_workers
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".incoming-*"):  # of a driver that was killed
            leftover.unlink()

    def incoming(self, generation: int, rank: int) -> Path:
        """Return where a checkpoint that is arriving is written."""
        return self.folder / f".incoming-{generation}-{rank}"

    def commit(self, path: Path, epoch: int, step: int) -> str:
        """Make a checkpoint that arrived whole the newest one; return its name."""
        name = f"checkpoint-{epoch:06}-{step:09}.npz"
        with self._lock:
            (self.folder / _WORKERS).write_text(str(self._num_workers))
            path.rename(self.folder / name)
            descriptor = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # so that the rename lasts, too
            finally:
                os.close(descriptor)
            for old in self._all()[:-_KEPT]:
                self.path(old.name).unlink()
        return name

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint."""
        with self._lock:
            return self._all()[-1] if self._all() else None

    @property
    def workers(self) -> int | None:
        """How many tasks trained when the newest checkpoint was made; None if nobody noted it."""
        try:
            return int((self.folder / _WORKERS).read_text())
        except (OSError, ValueError):
            return None

    def path(self, name: str) -> Path:
        """Return a checkpoint's file."""
        return inside(self.folder, name)

    def clear(self) -> None:
        """Delete them all: the job succeeded."""
        with self._lock:
            for checkpoint in self._all():
                self.path(checkpoint.name).unlink()
            (self.folder / _WORKERS).unlink(missing_ok=True)

    def _all(self) -> list[Checkpoint]:
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(
            (Checkpoint(m[0], int(m[1]), int(m[2])) for m in found if m),
            key=lambda checkpoint: (checkpoint.epoch, checkpoint.step),
        )
