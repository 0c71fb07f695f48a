"""Checkpoints that lie in HDFS or an object store, too: those of another driver, and for the next.

They come to the driver as all do; it puts each there before it says that it has arrived.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow.coordinator.checkpoints import WORKERS, CheckpointStore, is_kept
from gridflow.files import transfer
from gridflow.files.systems import absolute_path, scheme_of, where

if TYPE_CHECKING:
    from gridflow.coordinator.checkpoints import Checkpoint
    from gridflow.files.systems import Where
    from gridflow.spec.place import Place


def places(given: str | Path | None, job_dir: Path, base: str) -> tuple[Path, Where | None]:
    """Return the checkpoints' folder in the driver, and where else they lie, if they do.

    Parameters
    ----------
    given : str or Path or None
        As it was given; None: a folder of the job.
    job_dir : Path
    base : str
        The file system of paths such as ``hdfs:///here`` that don't name their host.
    """
    own = job_dir / "checkpoints"
    if given is None:
        return own, None
    if not scheme_of(str(given)):
        return Path(given), None
    place = absolute_path(str(given), base)
    return (own, where(place)) if scheme_of(place) else (Path(place), None)


def place_of(given: str | Path | None, base: str) -> Where | None:
    """Return the folder that event files are copied to, if they are.

    Raises
    ------
    InvalidArgument, MissingDependency, GridflowError
        There is no such file system, or it can't be reached.
    """
    if given is None:
        return None
    place = where(absolute_path(str(given), base))
    transfer.names_in(place)
    return place


def store_of(folder: Path, mirror: Where | None, num_workers: int) -> CheckpointStore:
    """Return the store of a job's checkpoints, with its mirror if there is one."""
    if mirror is None:
        return CheckpointStore(folder, num_workers)
    return MirroredCheckpoints(folder, mirror, num_workers)


class MirroredCheckpoints(CheckpointStore):
    """Checkpoints in a folder of the driver, and in one that outlives its machine.

    Parameters
    ----------
    folder : Path
        In the driver, for this job alone.
    mirror : Where
        The folder in the other file system. What is there comes to the driver first.
    num_workers : int, default 1
        How many tasks train.

    Raises
    ------
    GridflowError
        The other folder can't be read.
    """

    def __init__(self, folder: Path, mirror: Where, num_workers: int = 1) -> None:
        super().__init__(folder, num_workers)
        self._mirror = mirror
        self._mirror_lock = threading.Lock()
        self._there = {name for name in transfer.names_in(mirror) if is_kept(name)}
        for name in self._there:
            transfer.fetch(self._at(name), folder / name)

    def commit(self, path: Path, place: Place, label: str | None = None) -> str:
        """Make a checkpoint the newest one, here and there."""
        name = super().commit(path, place, label)
        with self._mirror_lock:
            # Itself the last: what says how to read it is there before it counts.
            for each in (WORKERS, self.label_name(name), name):
                if self.path(each).exists():
                    transfer.put(self.path(each), self._at(each))
                    self._there.add(each)
            self._forget_what_is_not_here()
        return name

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest one that can be read; others get their new names there, too."""
        try:
            return super().latest()
        finally:
            with self._mirror_lock:
                for path in self.folder.glob("*.unreadable"):
                    transfer.put(path, self._at(path.name))
                self._forget_what_is_not_here()

    def clear(self) -> None:
        """Delete them all, here and there."""
        super().clear()
        with self._mirror_lock:
            self._forget_what_is_not_here()
            for name in transfer.names_in(self._mirror):
                if name.endswith(".unreadable"):
                    transfer.delete(self._at(name))

    def _at(self, name: str) -> Where:
        return self._mirror.at(f"{self._mirror.path.rstrip('/')}/{name}")

    def _forget_what_is_not_here(self) -> None:
        for name in [name for name in self._there if not self.path(name).exists()]:
            transfer.delete(self._at(name))
            self._there.remove(name)
