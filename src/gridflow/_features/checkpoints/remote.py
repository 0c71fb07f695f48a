"""Checkpoints in HDFS or an object store, where a driver on another machine finds them.

Agents write them there, and the driver commits them. What an agent can't write there, it sends to
the driver, which copies it. What a checkpoint covers counts only once it is in the store.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gridflow._features.checkpoints.lease import Lease, without_mark
from gridflow._features.checkpoints.owner import FolderLock
from gridflow._features.checkpoints.store import (
    GO_ON,
    WORKERS,
    CheckpointStore,
    StoredAt,
    checkpoint_of,
    file_name,
    is_kept,
)
from gridflow._files import transfer
from gridflow._files.systems import absolute_path, scheme_of, where
from gridflow.errors import GridflowError, JobExists

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridflow._features.checkpoints.store import CommittedCheckpoint
    from gridflow._files.systems import Where
    from gridflow._spec.place import Place

#: Delay before retrying a failed copy; it doubles each time, up to the maximum.
_AGAIN_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 30.0
#: How long a store that can't be read is tried again before a restart fails.
_READ_SECONDS: Final = 60.0
#: At the job's end, time for a copy in progress.
_CLOSE_SECONDS: Final = 60.0


def places(given: str | Path | None, job_dir: Path, base: str) -> tuple[Path, Where | None]:
    """Return the checkpoints' folder in the driver, and the place of their copies, if any.

    `given`: As the user gave it; None: a folder of the job.
    `base`: The file system for paths such as ``hdfs:///here`` that don't name a host.
    """
    own = job_dir / "checkpoints"
    if given is None:
        return own, None
    if not scheme_of(str(given)):
        return Path(given), None
    place = absolute_path(str(given), base)
    return (own, where(place)) if scheme_of(place) else (Path(place), None)


def place_of(given: str | Path | None, base: str) -> Where | None:
    """Return the folder that event files are copied to, if any.

    Raises `InvalidArgument`, `MissingDependency`, `GridflowError`: The file system is unknown or
        can't be reached.
    """
    if given is None:
        return None
    place = where(absolute_path(str(given), base))
    transfer.names_in(place)
    return place


def store_of(
    folder: Path,
    mirror: Where | None,
    num_workers: int,
    job: str = "",
    say: Callable[[str], None] | None = None,
) -> CheckpointStore:
    """Return the store of a job's checkpoints, with its mirror if there is one.

    `job`: The job's id. It owns the checkpoints until the store is closed; without an id, no one
        does.
    `say`: Tells the user.
    Raises `JobExists`: Another job has these checkpoints.
    Raises `GridflowError`: They can't be read or written.
    """
    say = say or (lambda _: None)
    if mirror is None:
        lock = FolderLock(folder, job, say) if job else None
        try:
            return CheckpointStore(folder, num_workers, job, lock)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
    lease = Lease(mirror, job, say) if job else None
    try:
        return MirroredCheckpoints(folder, mirror, num_workers, job, lease, say)
    except BaseException:
        if lease is not None:
            with contextlib.suppress(GridflowError):
                lease.release(is_empty=not lease.accepted)
        raise


class _Copy(NamedTuple):
    """A remote copy: its file name without the suffix, and its label."""

    stem: str
    label: str | None

    @property
    def files(self) -> set[str]:
        return {f"{self.stem}.npz"} | ({f"{self.stem}.label"} if self.label is not None else set())


class MirroredCheckpoints(CheckpointStore):
    """Checkpoints in a remote folder, which outlives the driver's machine.

    Those that agents have sent are in a folder of the driver, too. If copying one fails, it is
    retried later while training goes on; the checkpoint's label doesn't count before that. Those
    that agents have written are fetched when they are read.

    `folder`: In the driver, for this job alone.
    `mirror`: The remote folder.
    `num_workers`: How many tasks train.
    `job`: The job's id.
    `lease`: Keeps other jobs out of the remote folder, until `close`.
    `say`: Tells the user.
    Raises `GridflowError`: The remote folder can't be read.
    """

    def __init__(
        self,
        folder: Path,
        mirror: Where,
        num_workers: int = 1,
        job: str = "",
        lease: Lease | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(folder, num_workers, job)
        self._mirror, self._lease, self._say = mirror, lease, say or (lambda _: None)
        self._mirror_lock = threading.RLock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem = self._refused = ""
        self._is_left = False
        #: The labels of checkpoints without a copy.
        self._missing: dict[str, str | None] = {}
        #: Those in the remote folder. Replaced rather than changed, as other threads read it.
        self._copies: dict[str, _Copy] = {}
        #: Names, without their suffix, under which an agent may write now.
        self._stems: set[str] = set()
        self._fetching = threading.Lock()
        for path in folder.iterdir():  # of an earlier driver: if copies differ, they are newer
            if is_kept(path.name):
                path.unlink()
        self._find()

    @property
    def lost(self) -> JobExists | None:  # type: ignore[override]
        """Set once another job has taken over the folder."""
        return None if self._lease is None else self._lease.lost

    @property
    def label(self) -> str | None:
        """The label of the newest copy: the next driver finds only copies."""
        copies = self._copies
        return copies[max(copies)].label if copies else None

    def begin(self, generation: int) -> None:
        """From now on refuse checkpoints of other generations."""
        super().begin(generation)
        self._stems = set()

    def offer(self, generation: int, rank: int, place: Place, label: str | None = None) -> str:
        """Return the address that an agent may write a checkpoint to; empty: it has to send it."""
        self.incoming(generation, rank)  # or its generation is over
        stems = self._stems
        with self._mirror_lock:
            if self._lease is None or self._missing or self._closed.is_set():
                return ""
            name = file_name(place)
            try:
                self._check()
                self._note_workers()
                self._write_label(name, label)
                stem = self._put_beside(name, label)
            except JobExists:
                raise
            except GridflowError:
                return ""  # the driver says so once it has the file, and tries again
        stems.add(stem)
        return self._mirror.complete(self._at(f"{stem}.npz").path)

    def commit_stored(self, at: str, size: int, place: Place, label: str | None = None) -> str:
        """Make a checkpoint that an agent has written the newest one."""
        name, stem = file_name(place), at.rpartition("/")[2].removesuffix(".npz")
        with self._mirror_lock:
            if stem not in self._stems:
                raise GridflowError(f"checkpoint {name} came too late: its generation is over")
            there = transfer.size_of(self._at(f"{stem}.npz"))
            if there != size:
                raise GridflowError(f"incomplete checkpoint: {there:,} of {size:,} bytes arrived.")
            self._check()  # otherwise it may have come too late for the next owner
            with self._fetching:
                self._unlink(name)  # one that was trained to in an earlier generation
            self._copies = {**self._copies, name: _Copy(stem, label)}
            self._stems.discard(stem)
            with self._lock:
                self._delete_old()
            self._forget()
        return name

    def locate(self, name: str) -> StoredAt:
        """Return a checkpoint's address, if it is in the store."""
        copy = self._copies.get(name)
        if copy is None:
            return StoredAt()
        return StoredAt(self._mirror.complete(self._at(f"{copy.stem}.npz").path))

    def stored(self, name: str) -> Path:
        """Return the file of a checkpoint, fetched if necessary.

        Raises `GridflowError`: No checkpoint has this name, or it can't be fetched.
        """
        path = super().stored(name)
        with self._fetching:
            if not path.exists() and (copy := self._copies.get(name)) is not None:
                self._fetch(self._at(f"{copy.stem}.npz"), path)
        return path

    def commit(self, path: Path, place: Place, label: str | None = None) -> str:
        """Make a checkpoint the newest one, here and remotely; retry later if copying fails."""
        with self._mirror_lock:
            self._stems = set()  # the agent sends it because it couldn't write it
            name = super().commit(path, place, label)
            self._missing[name] = label
            self._copy()
        return name

    def latest(
        self, *, between_epochs: bool = False
    ) -> tuple[CommittedCheckpoint | None, list[str]]:
        """Return the newest readable one; unreadable ones are renamed remotely, too."""
        with self._mirror_lock:
            before = set(self._copies)
            try:
                return super().latest(between_epochs=between_epochs)
            finally:
                if dropped := before - set(self._copies):
                    self._put_aside(sorted(dropped))

    def clear(self) -> None:
        """Delete all of them, here and remotely; copies that can't be deleted no longer count."""
        with self._mirror_lock:
            self._missing, self._copies = {}, {}
            self._is_left = True
            advice = GO_ON
            if self._lease is not None:
                with contextlib.suppress(GridflowError):  # then all must be deleted
                    self._lease.finish()
                    advice = "They don't count any more."
            refused = self._delete(lambda name: name == WORKERS or name.startswith("checkpoint-"))
            if refused:
                raise GridflowError(f"{refused}. {advice}")
            self._is_left = False
        super().clear()

    def close(self) -> None:
        """Try a last time to copy what is missing, and release the folder for other jobs."""
        self._closed.set()
        # A store that doesn't respond may hold the lock for minutes.
        if self._mirror_lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                if self._missing and self.lost is None:
                    self._copy()
            except JobExists:
                pass  # the job has ended by now
            finally:
                self._mirror_lock.release()
        if self._missing:
            self._say(
                f"can't copy the last checkpoint to {self._place}: {self._problem}. It is in "
                f"{self.folder}"
            )
        if self._lease is not None:
            self._lease.release(is_empty=not self._copies and not self._is_left)

    def all_kept(self) -> list[CommittedCheckpoint]:
        """Return all of them, whether they are here or there."""
        here = super().all_kept()
        known = {checkpoint.name for checkpoint in here}
        there = [checkpoint_of(name) for name in self._copies if name not in known]
        return sorted([*here, *filter(None, there)], key=lambda checkpoint: checkpoint.place)

    def drop(self, name: str) -> None:
        """Forget one that can't be used, here and there."""
        super().drop(name)
        self._copies = {each: copy for each, copy in self._copies.items() if each != name}

    def _fetch(self, source: Where, path: Path) -> None:
        """Fetch a checkpoint; retry for a while, as a restart would fail without it."""
        until, pause = time.monotonic() + _READ_SECONDS, _AGAIN_SECONDS
        while True:
            try:
                transfer.fetch(source, path)
            except GridflowError as error:
                if time.monotonic() + pause > until or self._is_gone(source):
                    raise
                if pause == _AGAIN_SECONDS:
                    self._say(f"can't read the last checkpoint, will retry: {error}")
                self._closed.wait(pause)
                pause = min(2 * pause, _MOST_SECONDS)
            else:
                return

    def _is_gone(self, source: Where) -> bool:
        """Return whether the store can be read, but has no such file."""
        try:
            return source.path.rpartition("/")[2] not in transfer.names_in(self._mirror)
        except GridflowError:
            return False

    # With the mirror's lock held ---------------------------------------------------

    def _find(self) -> None:
        """Find the checkpoints that count."""
        there = set(transfer.names_in(self._mirror))
        if self._lease is not None:
            found = there.intersection(self._lease.accepted)
        else:
            found = set(filter(is_kept, there))
        # The later one last, should a place have two.
        for remote in sorted(
            (name for name in found if name.endswith(".npz")),
            key=lambda name: (without_mark(name), name != without_mark(name), name),
        ):
            stem = remote.removesuffix(".npz")
            name = f"{without_mark(stem)}.npz"
            label = None
            if f"{stem}.label" in found:
                label = transfer.read(self._at(f"{stem}.label")).decode()
            self._copies = {**self._copies, name: _Copy(stem, label)}
        if self._copies and WORKERS in there:
            transfer.fetch(self._at(WORKERS), self.path(WORKERS))

    def _copy(self) -> None:
        """Copy what is missing; retry later if that fails."""
        name = min(self._missing, default="a checkpoint")
        try:
            self._check()
            for name in sorted(self._missing):
                if self.path(name).exists():
                    copy = self._put(name, self._missing[name])
                    self._check()  # otherwise it may have come too late for the next owner
                    self._copies = {**self._copies, name: copy}
                del self._missing[name]
        except JobExists:
            raise
        except GridflowError as error:
            if not self._problem:
                self._say(f"can't copy {name}, will retry: {error}")
            self._problem = str(error)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._copy_later, name="gridflow-mirror", daemon=True
                )
                self._thread.start()
            return
        if self._problem:
            self._problem = ""
            self._say(f"checkpoints are copied to {self._place} again")
        self._forget()

    def _copy_later(self) -> None:
        pause = _AGAIN_SECONDS
        while not self._closed.wait(pause):
            with self._mirror_lock:
                try:
                    if not self._closed.is_set():
                        self._copy()
                except JobExists:
                    return
                if not self._missing:
                    self._thread = None
                    return
            pause = min(2 * pause, _MOST_SECONDS)

    def _put(self, name: str, label: str | None) -> _Copy:
        """Copy a checkpoint; its own file comes last, so that it is complete before it counts."""
        stem = self._put_beside(name, label)
        transfer.put(self.path(name), self._at(f"{stem}.npz"))
        return _Copy(stem, label)

    def _put_beside(self, name: str, label: str | None) -> str:
        """Write what belongs to a checkpoint; return its name there, without the suffix."""
        stem = name.removesuffix(".npz")
        if self._lease is not None:
            stem += self._lease.new_mark()
        transfer.put(self.path(WORKERS), self._at(WORKERS))
        if label is not None:
            transfer.put(self.path(self.label_name(name)), self._at(f"{stem}.label"))
        return stem

    def _put_aside(self, names: list[str]) -> None:
        """Rename remotely what `latest` has found unreadable."""
        try:
            for name in names:
                aside = self.path(name).with_suffix(".unreadable")
                if aside.exists():
                    transfer.put(aside, self._at(aside.name))
        except GridflowError as error:
            self._say(f"{error}")
        self._forget()

    def _forget(self) -> None:
        """Delete copies of deleted checkpoints, and what an earlier owner adds too late."""
        old = {checkpoint.name for checkpoint in self._old()}
        self._copies = {name: copy for name, copy in self._copies.items() if name not in old}
        kept = {name for copy in self._copies.values() for name in copy.files}
        kept |= {f"{stem}{end}" for stem in self._stems for end in (".npz", ".label")}

        def is_old(name: str) -> bool:
            return name.startswith("checkpoint-") and not (
                name in kept or name.endswith(".unreadable")
            )

        refused = self._delete(is_old)
        if refused and not self._refused:
            self._say(f"can't delete old checkpoints: {refused}")
        self._refused = refused

    def _delete(self, is_chosen: Callable[[str], bool]) -> str:
        """Delete remote files; return what failed, if anything did."""
        refused = ""
        try:
            names = self._check()
        except JobExists:
            raise
        except GridflowError as error:
            return str(error)
        for name in filter(is_chosen, names):
            try:
                transfer.delete(self._at(name))
            except GridflowError as error:
                refused = refused or str(error)
        return refused

    def _check(self) -> list[str]:
        """Return the remote names; raise if another job has taken over the folder."""
        return transfer.names_in(self._mirror) if self._lease is None else self._lease.check()

    @property
    def _place(self) -> str:
        return self._mirror.complete(self._mirror.path)

    def _at(self, name: str) -> Where:
        return self._mirror.at(f"{self._mirror.path.rstrip('/')}/{name}")
