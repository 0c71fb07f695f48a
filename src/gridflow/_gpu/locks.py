"""Locks for the GPUs of this host, one for each GPU or part of one.

They are for hosts without a scheduler that assigns GPUs. A lock is a file that the agent locks
(flock(2)) and its training process inherits: it is released once both have ended, however they
ended. Choosing GPUs is guarded by one more lock, the table's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from gridflow._files.local import open_file
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from gridflow._gpu.devices import Device
    from gridflow._spec.gpus import GpuNeed

#: Sets another folder, for hosts on which jobs see different /tmp folders.
FOLDER_VARIABLE: Final = "GRIDFLOW_GPU_LOCKS"
#: Not the temporary folder: TMPDIR may differ between jobs, and all must share the locks.
_FOLDER: Final = "/tmp/gridflow-gpus"  # noqa: S108
_TABLE: Final = "table"
_TABLE_SECONDS: Final = 120.0
_MOST_WORDS: Final = 4096
_NAME: Final = re.compile(r"(?P<gpu>.+)\.(?P<shares>\d+)\.(?P<slot>\d+)")


class HeldLock(NamedTuple):
    """A lock that is held.

    `file`: The descriptor that holds it; closing it in all processes releases the GPU.
    """

    device: Device
    file: int


class GpuLocks:
    """The locks of this host.

    `folder`: Their folder, which all users of the host must share.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(folder or os.environ.get(FOLDER_VARIABLE) or _FOLDER)

    def take(
        self,
        need: GpuNeed,
        devices: Sequence[Device],
        busy: Callable[[], Collection[str]],
        owner: str,
    ) -> list[HeldLock]:
        """Take the GPUs of a need, all or none.

        `devices`: The devices to choose from.
        `busy`: Returns UUIDs of GPUs on which processes compute. Called while the table is locked.
        `owner`: Its description, for others who find the GPU in use.
        Returns: Empty if too few are free.
        """
        with self._table() as at:
            places = self._places(at, need, devices, busy())
            taken = places[: need.count]
            if len(taken) < (need.count or 0):
                return []
            return [
                HeldLock(device, self._lock(at, device, need.shares, s, owner))
                for device, s in taken
            ]

    def count_free(
        self, need: GpuNeed, devices: Sequence[Device], busy: Callable[[], Collection[str]]
    ) -> int:
        """Return how many GPUs, or parts of this size, are free now."""
        with self._table() as at:
            free, taken = 0, busy()
            for device in devices:
                held = self._held(at, device)
                if need.shares > 1 and held and {shares for shares, _ in held} == {need.shares}:
                    free += need.shares - len(held)
                elif not held and device.uuid not in taken:
                    free += need.shares
            return free

    def owners(self, devices: Sequence[Device]) -> list[str]:
        """Return descriptions of who holds what."""
        found = []
        with self._table() as at:
            for device in devices:
                for shares, slot in sorted(self._held(at, device)):
                    with open_file(at / _name(device, shares, slot)) as file:
                        who = file.read(_MOST_WORDS).decode(errors="replace")
                    found.append(f"GPU {device.index} by {who.strip() or 'somebody'}")
        return found

    def _places(
        self, at: Path, need: GpuNeed, devices: Sequence[Device], busy: Collection[str]
    ) -> list[tuple[Device, int]]:
        """Return free slots; those on GPUs that are already shared come first."""
        shared, whole = [], []
        for device in devices:
            held = self._held(at, device)
            if not held and device.uuid not in busy:
                whole.append((device, 0))
            elif need.shares > 1 and {shares for shares, _ in held} == {need.shares}:
                slots = {slot for _, slot in held}
                shared += [(device, s) for s in range(need.shares) if s not in slots]
        return shared + whole

    def _held(self, at: Path, device: Device) -> set[tuple[int, int]]:
        """Return (shares, slot) of each held lock of a GPU."""
        held = set()
        for path in at.glob(f"{_safe(device.uuid)}.*.*"):
            name = _NAME.fullmatch(path.name)
            if name is not None and self._is_locked(path):
                held.add((int(name["shares"]), int(name["slot"])))
        return held

    def _is_locked(self, path: Path) -> bool:
        file = _open(path)
        try:
            return not _try_lock(file)
        finally:
            os.close(file)

    def _lock(self, at: Path, device: Device, shares: int, slot: int, owner: str) -> int:
        file = _open(at / _name(device, shares, slot))
        if not _try_lock(file):
            os.close(file)
            raise GridflowError(f"the lock of GPU {device.index} was taken without the table")
        found = os.fstat(file)
        if found.st_uid == os.geteuid() and found.st_nlink == 1:  # not a file linked to here
            with contextlib.suppress(OSError):  # the old description stays
                os.ftruncate(file, 0)
                os.pwrite(file, owner.encode(), 0)
        return file

    @contextlib.contextmanager
    def _table(self) -> Iterator[Path]:
        """Lock the table; give the folder by a descriptor, as others could exchange its path."""
        is_new = False
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(parents=True)
            is_new = True
        try:
            place = os.open(self._folder, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            raise GridflowError(
                f"the path of the GPU locks, {self._folder}, is not a folder. Remove it, or set "
                f"another folder in {FOLDER_VARIABLE}."
            ) from error
        try:
            if is_new:  # like /tmp: all may add locks, but not remove others'
                os.fchmod(place, 0o1777)
            at = Path(f"/proc/self/fd/{place}")
            file = _open(at / _TABLE)
            try:
                self._wait_for(file)
                yield at
            finally:
                os.close(file)
        finally:
            os.close(place)

    def _wait_for(self, table: int) -> None:
        give_up = time.monotonic() + _TABLE_SECONDS
        while not _try_lock(table):
            if time.monotonic() > give_up:
                raise GridflowError(
                    f"{self._folder / _TABLE} is locked for {_TABLE_SECONDS:g} seconds; the "
                    "process that holds it is frozen (see lslocks)."
                )
            time.sleep(0.02)


def _safe(uuid: str) -> str:
    return re.sub(r"[^\w-]", "_", uuid)


def _name(device: Device, shares: int, slot: int) -> str:
    return f"{_safe(device.uuid)}.{shares}.{slot}"


def _open(path: Path) -> int:
    """Open a lock's file, whoever created it. Links aren't followed, as anyone may write there."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would be waited for
    with contextlib.suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
        os.fchmod(file, 0o644)
        return file
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:  # another user's; locking needs no write permission
        return os.open(path, os.O_RDONLY | flags)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
