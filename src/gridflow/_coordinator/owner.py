"""Ownership of a folder of checkpoints: one job at a time, however many drivers use the folder.

This module locks a folder of this machine; the file system's lock ends with its process. See
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

from gridflow._files.disks import refusal
from gridflow._files.local import make_folders
from gridflow.errors import InvalidArgument, JobExists, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_LOCK_NAME: Final = ".owner"


def about(job: str) -> dict[str, Any]:
    """Return the owner's description, for jobs that are refused."""
    return {"job": job, "pid": os.getpid(), "host": socket.gethostname()}


def whose(content: bytes, job: str = "") -> str:
    """Return the text of an `about` description."""
    try:
        told = json.loads(content)
        return f"job {told['job']} (process {told['pid']} on {told['host']})"
    except (ValueError, KeyError, TypeError):  # it is being written
        return f"job {job}" if job else "another job"


def taken(place: object, who: str) -> JobExists:
    """Return the error for a job that is refused."""
    return JobExists(
        f"checkpoint_dir={str(place)!r} is in use by {who}. Wait until it ends, cancel it, or use "
        "another checkpoint_dir=."
    )


_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """A folder of this machine, locked against other jobs until `release` or the process's end.

    `folder`: Made when missing.
    `job`: The job's id; refused jobs are told it.
    `say`: Tells the user.
    Raises `JobExists`: Another job of this or another process has it.
    Raises `InvalidArgument`: It can't be written.
    Raises `UnsafePath`: Another user created it, in a place where any user can.
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
            raise InvalidArgument(
                f"{refusal(f'checkpoint_dir={str(folder)!r}', error)}. Use a folder in which "
                "this process may create files."
            ) from error

    def _locked(self, say: Callable[[str], None]) -> int | None:
        """Return the descriptor that holds the lock; None if its file was deleted."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = whose(os.pread(file, 4096, 0))
            os.close(file)
            raise taken(self._path.parent, who) from None
        except OSError as error:
            say(
                f"{self._path.parent} is on a file system without locks ({error.strerror}): make "
                "sure that only one job at a time uses it as checkpoint_dir"
            )
        if self._is_at_path(file):
            return file
        os.close(file)  # its owner has released it and deleted the file
        return None

    def _is_at_path(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release it for other jobs."""
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
