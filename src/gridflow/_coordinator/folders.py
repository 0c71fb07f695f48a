"""The folders that jobs leave in the driver, with logs, results and event files."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import time
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._coordinator.record import read_result
from gridflow._files.local import (
    FileHeld,
    FileLock,
    check_no_links,
    check_own,
    make_folders,
    private_folder,
    read_json,
    user_name,
    write_whole,
    writing_to,
    writing_to_temporary,
)
from gridflow._files.procfs import began
from gridflow._spec.printable import printable
from gridflow.errors import InvalidArgument, JobExists

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_log = logging.getLogger(__name__)
#: What to do if a job's folder can't be made.
ELSEWHERE: Final = "Make room there, or choose another folder with job_dir=."
#: Names the driver's process in a job's folder.
_DRIVER_FILE: Final = "driver.json"
#: Held while a run with an id is in progress.
_LOCK_FILE: Final = "lock"
_SECONDS_PER_DAY: Final = 86_400
#: Live objects of this process that read from a job's folder: results, models.
_users: weakref.WeakKeyDictionary[object, Path] = weakref.WeakKeyDictionary()
_running: set[Path] = set()


@dataclass(frozen=True)
class JobFolder:
    """A job's folder.

    `began`: Seconds since 1970.
    `in_use`: Whether its driver still runs, or is on another host, which can't be checked.
    """

    path: Path
    began: float
    in_use: bool

    @property
    def id(self) -> str:
        return self.path.name

    def result(self) -> dict[str, Any]:
        """Return its ``result.json``; empty while it runs, and if it was killed."""
        return read_result(self.path) or {}

    def size(self) -> int:
        """Return the bytes of all its files."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                with contextlib.suppress(OSError):
                    total += (Path(folder) / name).lstat().st_size
        return total

    def delete(self) -> OSError | None:
        """Delete it with everything in it; return why some of it is left."""
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            shutil.rmtree(self.path, ignore_errors=True)
            return error if self.path.exists() else None
        return None


@dataclass(frozen=True)
class _Driver:
    """A job's driver: its process, and when that started."""

    host: str
    pid: int
    began: int

    @classmethod
    def of_job(cls, path: Path) -> _Driver | None:
        """Read the driver of a job's folder; None, with a warning, if it can't be read."""
        file = path / _DRIVER_FILE
        content = read_json(file)
        try:
            return cls(str(content["host"]), int(content["pid"]), int(content["began"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            if content is not None:
                _log.warning("skipping %s: it doesn't name a driver", repr(str(file)))
            return None

    @property
    def lives_elsewhere(self) -> bool:
        """Whether it is another process that may still run."""
        if self.host != socket.gethostname():
            return True
        return self.pid != os.getpid() and 0 < began(self.pid) == self.began


def default_folder() -> Path:
    """Return the parent folder of jobs without a ``job_dir=``.

    Raises `InvalidArgument`: No temporary folder can be written.
    """
    with writing_to_temporary():
        return Path(tempfile.gettempdir()) / f"gridflow-jobs-{user_name()}"


def make_in_default(job: str, keep: int | None) -> Path:
    """Create a job's folder in the default one, and delete all but the latest others.

    Raises `InvalidArgument`: It can't be written.
    Raises `UnsafePath`: Another user made the default folder, or can write to it.
    """
    folder = default_folder()
    with writing_to(f"the temporary folder {folder.parent}", f"{ELSEWHERE} TMPDIR names another."):
        private_folder(folder)
        if keep is not None:
            prune(folder, keep)
        return _make(folder, job)


def make(folder: Path, job: str) -> Path:
    """Create a job's folder.

    Raises `InvalidArgument`: It can't be written.
    Raises `UnsafePath`: Another user created its parent folder in a place where any user can.
    """
    with writing_to(f"job_dir={str(folder)!r}", ELSEWHERE):
        return _make(folder, job)


def _make(folder: Path, job: str) -> Path:
    make_folders(folder)
    path = folder / job
    path.mkdir(0o700)
    try:
        _note_driver(path)
    except BaseException:  # a full disk; without a driver nobody would ever delete it
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def check(path: Path) -> None:
    """Refuse an existing run folder into which another user could have written.

    Raises `UnsafePath`: Another user owns it or can write to it, or it contains links.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # using it will show that
        check_own(path)
        check_no_links(path)


def _note_driver(path: Path) -> None:
    driver = _Driver(socket.gethostname(), os.getpid(), began(os.getpid()))
    write_whole(path / _DRIVER_FILE, json.dumps(asdict(driver)))


class Claim:
    """A run's folder, locked against other drivers until `release` or the end of this process.

    The lock ends with the process, however that ends; see `FileLock`.

    `folder`: The parent folder of runs.
    Raises `JobExists`: Another driver, or another job of this one, runs it.
    Raises `InvalidArgument`: It can't be written.
    Raises `UnsafePath`: Another user owns the run's folder or can write to it.
    `path`: The run's folder, created if missing.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self.path = folder / run_id
        with writing_to(f"job_dir={str(folder)!r}", ELSEWHERE):
            make_folders(self.path, 0o700)
            check(self.path)
            try:
                self._lock = FileLock(self.path / _LOCK_FILE, 0o600)
            except FileHeld:
                raise JobExists(
                    f"run {run_id!r} is in progress in {self.path}, {_whose(self.path)}: wait "
                    "until it ends, or use another run_id=."
                ) from None
        try:
            with writing_to(f"job_dir={str(folder)!r}", ELSEWHERE):
                _note_driver(self.path)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        self._lock.release()


def _whose(path: Path) -> str:
    driver = _Driver.of_job(path)
    return f"by process {driver.pid} on {driver.host}" if driver else "by another driver"


def note_user(user: object, path: Path) -> None:
    """Keep a job's folder while an object that reads from it is alive."""
    _users[user] = path


@contextlib.contextmanager
def running(path: Path) -> Iterator[None]:
    """Keep a job's folder during a block."""
    _running.add(path)
    try:
        yield
    finally:
        _running.discard(path)


def find(folder: Path) -> list[JobFolder]:
    """Return the jobs' folders in a folder, the latest first."""
    found = []
    used = {*_users.values(), *_running}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                file = path / _DRIVER_FILE
                if path.is_dir() and not path.is_symlink() and file.is_file():
                    driver = _Driver.of_job(path)
                    if driver is not None:
                        in_use = path in used or driver.lives_elsewhere
                        found.append(JobFolder(path, file.stat().st_mtime, in_use))
    return sorted(found, key=lambda job: job.began, reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Delete all but the latest folders, and those in use."""
    for job in find(folder)[keep:]:
        if not job.in_use:
            job.delete()


# The command line --------------------------------------------------------------------------------


def command(arguments: argparse.Namespace) -> int:
    """Run ``gridflow jobs``: list jobs' folders, or delete some."""
    folder = Path(arguments.dir) if arguments.dir else default_folder()
    if not arguments.dir and folder.exists():
        private_folder(folder)
    before = time.time() - arguments.days * _SECONDS_PER_DAY
    jobs = [job for job in find(folder) if job.began <= before]
    if arguments.delete is None:
        _print(jobs, as_json=arguments.json)
        return 0
    chosen = _chosen(jobs, arguments.delete, folder)
    sizes = [(job, job.size()) for job in chosen]
    left = {job: error for job in chosen if (error := job.delete()) is not None}
    size = sum(size for job, size in sizes if job not in left)
    sys.stdout.write(f"{len(chosen) - len(left)} deleted, {_megabytes(size)}\n")
    for job, error in left.items():
        sys.stderr.write(printable(f"can't delete all of {job.path}: {error}") + "\n")
    return 1 if left else 0


def _chosen(jobs: list[JobFolder], ids: list[str], folder: Path) -> list[JobFolder]:
    by_id = {job.id: job for job in jobs}
    for each in ids:
        if each not in by_id:
            raise InvalidArgument(
                f"no job {each!r} in {folder}; list the jobs with: gridflow jobs."
            )
        if by_id[each].in_use:
            raise InvalidArgument(
                f"job {each!r} is in use: its driver still runs or is on another host."
            )
    return [job for job in jobs if not job.in_use and (not ids or job.id in ids)]


def _print(jobs: list[JobFolder], *, as_json: bool) -> None:
    if as_json:
        listed = [
            {
                "id": job.id,
                "began": job.began,
                "in_use": job.in_use,
                "result": job.result() or None,
                "bytes": job.size(),
                "path": str(job.path),
            }
            for job in jobs
        ]
        sys.stdout.write(json.dumps(listed, indent=2) + "\n")
        return
    for job in jobs:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(job.began))
        use = "in use" if job.in_use else "ended"
        line = f"{job.id}  {began}  {use:<6}  {_ending(job):<27}  {_megabytes(job.size()):>10}  "
        sys.stdout.write(" ".join(printable(f"{line}{job.path}").split("\n")) + "\n")


def _ending(job: JobFolder) -> str:
    result = job.result()
    error = result.get("error")
    if isinstance(error, dict):
        return f"{error.get('kind')} ({result.get('exit_code')})"
    return str(result.get("state", ""))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
