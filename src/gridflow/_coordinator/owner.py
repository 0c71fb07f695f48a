"""Who owns a folder of checkpoints: one job at a time, however many drivers are given the folder.

Here a folder of this machine, by a lock of its file system, which ends with its process. See
`gridflow._coordinator.checkpoint_lease` for HDFS and object stores.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import weakref
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.local import make_folders
from gridflow.errors import InvalidArgument, JobExists, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_LOCK_NAME: Final = ".owner"


def about(job: str) -> dict[str, Any]:
    """Return what an owner leaves for those who are refused."""
    return {"job": job, "pid": os.getpid(), "host": socket.gethostname()}


def whose(content: bytes, job: str = "") -> str:
    """Return in words what `about` says."""
    try:
        told = json.loads(content)
        return f"job {told['job']} (process {told['pid']} on {told['host']})"
    except (ValueError, KeyError, TypeError):  # it is being written
        return f"job {job}" if job else "another job"


def taken(place: object, who: str) -> JobExists:
    """Return the error of a job that is refused."""
    return JobExists(
        f"checkpoint_dir={str(place)!r} is in use by {who}. Wait for its end, cancel it, or give "
        "another checkpoint_dir=."
    )


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """A folder of this machine, kept from other jobs until `release` or the end of this process.

    Parameters
    ----------
    folder : Path
        Made when missing.
    job : str
        The job's id: said to those who are refused.
    say : callable
        Tells the user.

    Raises
    ------
    JobExists
        Another job has it, of this process or another.
    InvalidArgument
        It can't be written.
    UnsafePath
        Another user has made it, where any user can.
    """

    def __init__(self, folder: Path, job: str, say: Callable[[str], None]) -> None:
        self._path = folder / _LOCK_NAME
        self._file: int | None = None
        try:
            make_folders(folder)
            while self._file is None:
                self._file = self._locked(say)
            _locks.add(self)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(about(job)).encode(), 0)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                self.release()
            if isinstance(error, UnsafePath):
                raise
            why = str(error.strerror or error).rstrip(".")
            raise InvalidArgument(
                f"checkpoint_dir={str(folder)!r} can't be written: {why}. Give a folder in which "
                "this process may create files."
            ) from error

    def _locked(self, say: Callable[[str], None]) -> int | None:
        """Return the descriptor that holds the lock; None if its file was deleted meanwhile."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = whose(os.pread(file, 4096, 0))
            os.close(file)
            raise taken(self._path.parent, who) from None
        except OSError as error:
            say(
                f"{self._path.parent} lies in a file system without locks ({error.strerror}): see "
                "to it that only one job at a time has it as its checkpoint_dir"
            )
        if self._is_at_path(file):
            return file
        os.close(file)  # its owner has released it, and deleted the file
        return None

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let others have it."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._is_at_path(file):
                self._path.unlink()
        finally:
            os.close(file)

    def forget(self) -> None:
        """Leave the lock to the process that this one was forked from."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _forget_locks() -> None:
    for lock in list(_locks):
        lock.forget()


# A lock lives as long as any process has its descriptor: a child would keep it after its parent.
os.register_at_fork(after_in_child=_forget_locks)
