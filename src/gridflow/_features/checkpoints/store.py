"""The checkpoints of a job, as committed in the driver.

Agents that see the folder write them into it, and read them there (`agent.py`). From others they
travel to the driver, and from there to every rank of the next generation, so no shared file system
is needed. A checkpoint counts once the driver has renamed it into place.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._files.local import make_folders, open_file, sync, write_whole
from gridflow._keras.resume.checkpoint_file import not_finite_in
from gridflow._spec.place import Place
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from gridflow._features.checkpoints.owner import FolderLock
    from gridflow.errors import JobExists

_NAME: Final = re.compile(r"checkpoint-(\d{4,})-(\d{6,})-(\d{9,})\.npz")
#: Beside the checkpoints: how many tasks trained when they were made.
WORKERS: Final = "num_workers"
#: The newest one, and the one before should the newest prove unreadable.
_KEPT: Final = 2
#: What to do about checkpoints that are left.
GO_ON: Final = "Delete them, or the next job with this checkpoint_dir= resumes from them."


@dataclass(frozen=True)
class CommittedCheckpoint:
    """A committed checkpoint: its file name, and its place in the training."""

    name: str
    place: Place


@dataclass(frozen=True)
class StoredAt:
    """Where a checkpoint is, for those who may see it there themselves.

    `at`: A path, or an address with a scheme; empty: only the driver has it.
    `size`, `modified`: Its bytes, and a time in nanoseconds, by which a path on another machine is
        known to be the same file; 0: an address needs none.
    """

    at: str = ""
    size: int = 0
    modified: int = 0


def file_name(place: Place) -> str:
    """Return the name of the checkpoint of a place."""
    return f"checkpoint-{place.fit:04}-{place.epoch:06}-{place.step:09}.npz"


def checkpoint_of(name: str) -> CommittedCheckpoint | None:
    """Return the checkpoint of a file's name; None if it isn't one."""
    found = _NAME.fullmatch(name)
    return CommittedCheckpoint(name, Place(*map(int, found.groups()))) if found else None


def is_kept(name: str) -> bool:
    """Return whether a file of this name is a checkpoint, or belongs to one."""
    checkpoint = name.removesuffix(".label") + ".npz" if name.endswith(".label") else name
    return name == WORKERS or _NAME.fullmatch(checkpoint) is not None


class CheckpointStore:
    """Checkpoints in one folder.

    `folder`: Made when missing.
    `num_workers`: How many tasks train; noted beside the checkpoints.
    `job`: The job's id, for the names of arriving files.
    `owner`: Keeps other jobs out of the folder, until `close`.
    `keeps_epochs`: Whether to keep the newest one from between two epochs, too.
    `lost`: Set once another job has taken over the checkpoints, which a local lock rules out.
    """

    lost: JobExists | None = None
    keeps_epochs = False

    def __init__(
        self, folder: Path, num_workers: int = 1, job: str = "", owner: FolderLock | None = None
    ) -> None:
        self.folder = folder
        self.num_workers, self._job, self._owner = num_workers, job, owner
        self._lock = threading.Lock()
        self._newest_label: str | None = None
        #: The last place that an agent was offered.
        self._offered: Path | None = None
        make_folders(self.folder)
        for unfinished in folder.glob(".incoming-*"):  # of a driver that was killed
            unfinished.unlink()
        self.begin(0)

    def begin(self, generation: int) -> None:
        """From now on refuse checkpoints of other generations, even those that are being sent."""
        with self._lock:
            self._incoming = f".incoming-{self._job}-{generation}-"
            for unfinished in self.folder.glob(f".incoming-{self._job}-*"):
                unfinished.unlink()

    def incoming(self, generation: int, rank: int) -> Path:
        """Return the path to write an arriving checkpoint to.

        Raises `GridflowError`: It comes from an agent that was lost, and a later generation has
            begun.
        """
        name = f".incoming-{self._job}-{generation}-{rank:d}-{uuid.uuid4().hex}"
        if not name.startswith(self._incoming):
            raise GridflowError(f"checkpoint refused: generation {generation} is over")
        self._withdraw()  # its agent sends it instead
        return self.folder / name

    def offer(self, generation: int, rank: int, place: Place, label: str | None = None) -> str:  # noqa: ARG002
        """Return where an agent may write a checkpoint itself; empty: nowhere.

        An empty file lies there, so the agent knows whether it sees this folder.

        Raises `GridflowError`: As `incoming`.
        """
        path = self.incoming(generation, rank)
        try:
            open_file(path, "xb").close()
        except OSError:
            return ""  # the agent sends it, and hears why it can't be written
        self._offered = path
        return str(path)

    def _withdraw(self) -> None:
        """Delete what an agent was offered, but has not written or not reported."""
        with contextlib.suppress(OSError):
            if self._offered is not None:
                self._offered.unlink()
        self._offered = None

    def commit_stored(self, at: str, size: int, place: Place, label: str | None = None) -> str:
        """Make a checkpoint that was written to an offered place the newest one; return its name.

        Raises `GridflowError`: It isn't there as a whole; or as `commit`.
        """
        path, there = self.path(Path(at).name), 0
        with contextlib.suppress(FileNotFoundError), open_file(path) as file:
            there = os.fstat(file.fileno()).st_size  # of the opened file: NFS keeps older answers
        if there != size and path.name.startswith(self._incoming):
            raise GridflowError(f"incomplete checkpoint: {there:,} of {size:,} bytes arrived.")
        name = self.commit(path, place, label)
        self._offered = None
        return name

    def locate(self, name: str) -> StoredAt:
        """Return where a checkpoint can be read.

        Raises `GridflowError`: No checkpoint has this name.
        """
        path = self.stored(name)
        try:
            found = path.stat()
        except OSError as error:
            raise GridflowError(f"{name} is gone: {error}") from error
        return StoredAt(str(path), found.st_size, found.st_mtime_ns)

    def commit(self, path: Path, place: Place, label: str | None = None) -> str:
        """Make a checkpoint that arrived complete the newest one; return its name.

        The label says which pushed rows it covers. It is stored before the checkpoint counts.

        Raises `GridflowError`: Another generation began while it was arriving.
        """
        name = file_name(place)
        with self._lock:
            if not path.name.startswith(self._incoming):
                path.unlink(missing_ok=True)
                raise GridflowError(f"checkpoint {name} came too late: its generation is over")
            self._note_workers()
            self._write_label(name, label)
            path.rename(self.folder / name)
            sync(self.folder)  # so that the rename lasts, too
            self._delete_old()
            self._newest_label = label
        return name

    def _note_workers(self) -> None:
        if self.workers != self.num_workers:
            write_whole(self.folder / WORKERS, str(self.num_workers))

    def _delete_old(self) -> None:
        for old in self._old():
            with contextlib.suppress(OSError):  # tried again after the next one
                self._unlink(old.name)

    def _unlink(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)
        self._label_of(name).unlink(missing_ok=True)

    def drop(self, name: str) -> None:
        """Forget a checkpoint that can't be used."""
        self._unlink(name)

    def _old(self) -> list[CommittedCheckpoint]:
        """Return those that aren't needed any more."""
        old = self.all_kept()[:-_KEPT]
        whole = [each for each in self.all_kept() if not each.place.step][-1:]
        return [each for each in old if not (self.keeps_epochs and each in whole)]

    @property
    def newest(self) -> Place | None:
        with self._lock:
            found = self.all_kept()[-1:]
        return found[0].place if found else None

    @property
    def label(self) -> str | None:
        """The label of the newest checkpoint, None if it has none."""
        with self._lock:
            if self._newest_label is None:
                newest = self.all_kept()[-1:]
                path = self._label_of(newest[0].name) if newest else None
                if path is not None and path.exists():
                    with open_file(path) as file:
                        self._newest_label = file.read().decode()
            return self._newest_label

    def label_name(self, name: str) -> str:
        """Return the name of the file with a checkpoint's label."""
        return self._label_of(name).name

    def _label_of(self, name: str) -> Path:
        return self.path(name).with_suffix(".label")

    def _write_label(self, name: str, label: str | None) -> None:
        path = self._label_of(name)
        path.unlink(missing_ok=True)
        if label is not None:
            write_whole(path, label)

    def latest(
        self, *, between_epochs: bool = False
    ) -> tuple[CommittedCheckpoint | None, list[str]]:
        """Return the newest checkpoint that can be used, and what is wrong with newer ones.

        Others are renamed and kept for inspection.

        `between_epochs`: Delete those from within an epoch that are newer than all others.
        Raises `GridflowError`: None of the existing ones can be used. Starting over silently would
            lose them.
        """
        wrong: list[str] = []
        with self._lock:
            for checkpoint in reversed(self.all_kept()):
                if between_epochs and checkpoint.place.step:
                    self.drop(checkpoint.name)
                    continue
                path = self.stored(checkpoint.name)
                problem = _problem(path)
                if problem is None:
                    return checkpoint, wrong
                wrong.append(f"{checkpoint.name} {problem}")
                path.rename(path.with_suffix(".unreadable"))
                self.drop(checkpoint.name)
                self._newest_label = None  # what it covered isn't covered any more
        if wrong:
            raise GridflowError(
                f"no checkpoint in {self.folder} can be used: {'; '.join(wrong)}. They were "
                "renamed to *.unreadable; the next run() with this checkpoint_dir starts over."
            )
        return None, wrong

    @property
    def workers(self) -> int | None:
        """How many tasks trained when the newest checkpoint was made; None if unknown."""
        try:
            with open_file(self.folder / WORKERS) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def stored(self, name: str) -> Path:
        """Return the file of a checkpoint by its name.

        Raises `GridflowError`: It isn't the name of a checkpoint.
        """
        if _NAME.fullmatch(name) is None:
            raise GridflowError(f"not a checkpoint name: {name!r}.")
        return self.path(name)

    def path(self, name: str) -> Path:
        """Return a checkpoint's file; `open_file` refuses it if it is a link."""
        if Path(name).name != name:
            raise GridflowError(f"not a file name: {name!r}.")
        return self.folder / name

    def close(self) -> None:
        """Release the folder for other jobs."""
        self._withdraw()
        if self._owner is not None:
            self._owner.release()

    def clear(self) -> None:
        """Delete them all: the job succeeded.

        Raises `GridflowError`: Some could not be deleted.
        """
        problem: OSError | None = None
        with self._lock:
            for path in (*self.folder.glob("checkpoint-*"), self.folder / WORKERS):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    problem = error
        if problem is not None:
            raise GridflowError(f"{problem}. {GO_ON}") from problem

    def all_kept(self) -> list[CommittedCheckpoint]:
        """Return all of them, the newest last."""
        found = (checkpoint_of(path.name) for path in self.folder.iterdir())
        return sorted((each for each in found if each), key=lambda checkpoint: checkpoint.place)


def _problem(path: Path) -> str | None:
    """Return what is wrong with a checkpoint: damage by its checksums, or NaN; None: nothing.

    The training process makes none with NaN, but that of an earlier gridflow did.
    """
    try:
        with open_file(path) as file:
            with zipfile.ZipFile(file) as archive:
                damaged = archive.testzip()
            file.seek(0)
            variable = not_finite_in(file) if damaged is None else ""
    except Exception as error:  # noqa: BLE001 (of many kinds, and none of them is documented)
        return f"can't be read ({type(error).__name__}: {error})"
    if damaged is not None:
        return f"can't be read (its part {damaged} is damaged)"
    return f"has a variable that isn't finite ({variable!r})" if variable else None
