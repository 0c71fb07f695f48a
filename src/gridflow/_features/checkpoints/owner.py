"""Ownership of a folder of checkpoints: one job at a time, however many drivers use the folder.

This module locks a folder of this machine; the file system's lock ends with its process. See
`gridflow._features.checkpoints.lease` for HDFS and object stores.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from gridflow._files.local import FileHeld, FileLock, make_folders, refusal
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
        self._lock: FileLock | None = None
        try:
            make_folders(folder)
            self._lock = FileLock(folder / _LOCK_NAME, 0o644)
            while not self._lock.is_at_path:  # its owner has released it and deleted the file
                self._lock.forget()
                self._lock = FileLock(folder / _LOCK_NAME, 0o644)
            if self._lock.problem:
                say(
                    f"{folder} is on a file system without locks ({self._lock.problem}): make sure "
                    "that only one job at a time uses it as checkpoint_dir"
                )
            self._lock.write(json.dumps(about(job)).encode())
        except FileHeld as held:
            raise taken(folder, whose(held.content)) from None
        except OSError as error:
            with contextlib.suppress(OSError):
                self.release()
            if isinstance(error, UnsafePath):
                raise
            raise InvalidArgument(
                f"{refusal(f'checkpoint_dir={str(folder)!r}', error)}. Use a folder in which "
                "this process may create files."
            ) from error

    def release(self) -> None:
        """Release it for other jobs."""
        if self._lock is not None:
            self._lock.release(deletes=True)
