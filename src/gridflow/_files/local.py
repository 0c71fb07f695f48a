"""Local files that other users can't tamper with, and that are written atomically or not at all.

In a shared temporary folder, anyone can create a file or folder under any name before gridflow
does. An existing one is used only if this user owns it and no one else can write to it.

`refusal` says what a disk refuses: which folder on which host, and why. `replacing` is for users'
files: the new one is written beside the old one, and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import json
import logging
import os
import pwd
import secrets
import shutil
import socket
import stat
import tempfile
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from gridflow.errors import GridflowError, InvalidArgument, UnsafePath

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_log = logging.getLogger(__name__)
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_PASS: Final = stat.S_IXGRP | stat.S_IXOTH
#: As for Linux.
_MOST_LINKS: Final = 40


def user_name(uid: int | None = None) -> str:
    """Return the name of a user (default: this process's); the number of one without a name."""
    uid = os.geteuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# Folders -----------------------------------------------------------------------------------------


def private_folder(path: Path) -> Path:
    """Create a folder that only this user can enter, or check an existing one.

    Raises `UnsafePath`: Another user created it, or can write to it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    if stat.S_IMODE(check_own(path).st_mode) & 0o077:
        with contextlib.suppress(OSError):  # a file system that keeps no modes
            path.chmod(0o700)
    return path


def make_folders(path: Path, mode: int = 0o755) -> None:
    """Create a folder and missing parents; other users can't write to any of them.

    Raises `UnsafePath`: Another user created one of them; see `check_not_planted`.
    """
    if not path.is_dir():
        if path.parent != path:
            make_folders(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode)
    # Only now: what was looked at before it was there could be anybody's.
    check_not_planted(path)
    if not path.is_dir():
        raise FileExistsError(f"{path} exists and is not a folder.")


def check_not_planted(path: Path) -> None:
    """Refuse a path that includes a folder or link which another user created where any user can.

    Like Linux's ``protected_symlinks``: in a folder that everyone can write to, only entries of
    this user, of root and of the folder's owner are trusted. Each part is checked after the one
    that contains it, so that no other user can exchange it afterwards.

    Raises `UnsafePath`: There is one; the message says whose it is.
    Raises `FileNotFoundError`: Something on the path doesn't exist, or no longer.
    """
    for above, each in _steps(path):
        around, found = above.stat(), each.lstat()
        if not around.st_mode & stat.S_IWOTH:
            continue
        if found.st_uid not in {0, around.st_uid} and not _is_mine(found, above):
            raise UnsafePath(
                f"{each} belongs to {user_name(found.st_uid)}, and is in {above}, where any user "
                f"could have created it, so {user_name()} can't trust it. Remove it, or use "
                "another folder."
            )


def _steps(path: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each folder that leads to a path and the entry in it, a link before its target.

    The folder is free of links, and the caller has seen all that lead to it.
    """
    names = list(reversed(path.absolute().parts))
    at, links = Path(names.pop()), 0
    while names:
        name = names.pop()
        if name == os.pardir:
            at = at.parent
            continue
        each = at / name
        yield at, each
        if not each.is_symlink():
            at = each
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = each.readlink()
        at = Path(target.anchor) if target.is_absolute() else at
        names += reversed(target.relative_to(target.anchor).parts)


def check_own(root: Path, below: Sequence[str] = ()) -> os.stat_result:
    """Refuse a folder, or a path inside it, if another user owns it or can write to it.

    If a folder lets no one else in, the modes of its contents don't matter. A group without a name
    on this host that this process is in counts as its own (``fsGroup`` of Kubernetes). On file
    systems that map all owners to one (NFS's ``root_squash``) or don't store modes (SMB), a file
    that this process creates there shows what to expect.

    `root`: A folder.
    `below` (sequence of str): Names inside it, each within the previous one.
    Returns: The status of the last one.
    Raises `UnsafePath`: Something on the path isn't only this user's, or is a link; the message
        says whose it is.
    Raises `FileNotFoundError`: Something on the path doesn't exist.
    """
    path, writers = root, _OTHERS_WRITE
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafePath(f"{path} is not a folder but {_kind(found)}. Remove it.")
    _check(path, found, writers)
    for name in below:
        writers &= (found.st_mode & _OTHERS_PASS) << 1  # the bit for x becomes the one for w
        path /= name
        found = path.lstat()
        _check(path, found, writers)
    return found


def check_no_links(folder: Path) -> None:
    """Refuse one of gridflow's own folders that contains a link at any depth.

    Raises `UnsafePath`: It contains a link.
    """
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise UnsafePath(
                    f"{path} is a symbolic link to {path.readlink()}. gridflow doesn't follow "
                    "links in its own folders. Remove it."
                )


# Files -------------------------------------------------------------------------------------------


def open_file(path: Path, mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a regular file like `open`, without following links or waiting for pipes.

    Raises `UnsafePath`: It is a link, or not a regular file.
    """
    try:
        file = open(path, mode, opener=_open, **options)  # noqa: SIM115 (the caller does)
    except OSError as error:
        if path.is_symlink():
            raise UnsafePath(_not_a_file(path, path.lstat())) from error
        raise
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        file.close()
        raise UnsafePath(_not_a_file(path, found))
    return file


def open_own(path: Path) -> IO[bytes]:
    """Open a file for reading if this user owns it.

    Raises `UnsafePath`: Another user owns it, or it isn't a regular file.
    """
    file: IO[bytes] = open_file(path)
    try:
        _check(path, os.fstat(file.fileno()), 0)
    except BaseException:
        file.close()
        raise
    return file


def read_json(path: Path) -> Any:
    """Return the content of one of gridflow's small files; None if it doesn't exist.

    An unreadable file, such as an incomplete one, is skipped with a warning: None.
    """
    try:
        with open_file(path) as file:
            return json.loads(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        # Quoted: the path, which may be another user's, can contain control characters.
        _log.warning("skipping %s, which can't be read: %s", repr(str(path)), error)
        return None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a small file atomically and durably: after a crash it is the old or the new one.

    An existing file or link of that name is replaced.

    Raises `OSError`: The disk is full, or permission is missing. Nothing is left then, and an
        existing file is unchanged.
    """
    content = content.encode() if isinstance(content, str) else content
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(beside, flags, 0o644), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # not all file systems support this for folders
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a crash of the host."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Locks --------------------------------------------------------------------------------------------


class FileHeld(Exception):
    """Another process, or another part of this one, has a file locked; `content` is the file's."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.content = content


class FileLock:
    """A file that is locked against other processes until `release` or the end of this one.

    Processes that this one forks don't hold the lock. On network file systems whose locks don't
    reach other hosts, only processes of this host are kept out.

    `path`: Created if missing; links aren't followed.
    `problem`: Why the file isn't locked: its file system has no locks.
    Raises `FileHeld`, `OSError`: It is locked, or can't be opened.
    """

    def __init__(self, path: Path, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self.path, self.problem = path, ""
        self._file = os.open(path, flags, mode)
        _locked.add(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = FileHeld(os.pread(self._file, _MOST_OF_HELD, 0))
            self.forget()
            raise held from None
        except OSError as error:
            self.problem = error.strerror or str(error)

    @property
    def is_at_path(self) -> bool:
        """Whether the path still leads to this file."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.lstat())
        except FileNotFoundError:
            return False

    def write(self, content: bytes) -> None:
        """Replace the content, which `FileHeld` tells others."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)
        os.fsync(self._file)

    def release(self, *, deletes: bool = False) -> None:
        """Unlock the file for others, and delete it if that is asked and nobody else has."""
        if self._file < 0:
            return
        try:
            if deletes and self.is_at_path:
                self.path.unlink()
            with contextlib.suppress(OSError):  # a process that was forked may hold it, too
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self.forget()

    def forget(self) -> None:
        """Leave the lock to the process that this one was forked from."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


_MOST_OF_HELD: Final = 4096
_locked: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_locks() -> None:
    for each in list(_locked):
        each.forget()


# A lock lives as long as any process has its descriptor: a child would keep it after its parent.
os.register_at_fork(after_in_child=_forget_locks)

# -------------------------------------------------------------------------------------------------


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)


def _not_a_file(path: Path, found: os.stat_result) -> str:
    return f"{path} is not a file but {_kind(found)}. Remove it."


def _kind(found: os.stat_result) -> str:
    names = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file"}
    return names.get(stat.S_IFMT(found.st_mode), "a device, pipe or socket")


def _check(path: Path, found: os.stat_result, writers: int) -> None:
    """Refuse what isn't this user's, or what others with a bit in ``writers`` can write to."""
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise UnsafePath(_not_a_file(path, found))
    folder = path if is_folder else path.parent
    if not _is_mine(found, folder):
        raise UnsafePath(
            f"{path} belongs to {user_name(found.st_uid)}, so {user_name()} can't trust its "
            "content. Remove it, or use another folder (or run_id)."
        )
    if found.st_mode & stat.S_IWGRP and _is_own_group(found.st_gid):
        writers &= ~stat.S_IWGRP
    if found.st_mode & writers and _keeps_modes(folder):
        raise UnsafePath(
            f"other users can write to {path} (mode {stat.S_IMODE(found.st_mode):04o}), and could "
            "have put code into it. Delete it; or, if you are sure that everything in it is "
            f"yours, run: chmod go-w {path}."
        )


def _is_mine(found: os.stat_result, folder: Path) -> bool:
    if found.st_uid == os.geteuid():
        return True
    probe = _probe(folder)
    return probe is not None and probe.st_uid == found.st_uid


def _keeps_modes(folder: Path) -> bool:
    probe = _probe(folder)
    return probe is None or not probe.st_mode & _OTHERS_WRITE


def _probe(folder: Path) -> os.stat_result | None:
    """Return the status of a private file that this process has just created."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno())
    except OSError:
        return None


def _is_own_group(gid: int) -> bool:
    if gid not in {os.getegid(), *os.getgroups()}:
        return False
    try:
        grp.getgrgid(gid)
    except KeyError:
        return True
    return False


#: How a disk says that it has no room.
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Also: it is broken, gone or read-only, or the folder is gone or belongs to others.
_REFUSALS: Final = FULL | {
    *(errno.EROFS, errno.EIO, errno.ENXIO, errno.ESTALE),
    *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY),
}


def is_refusal(error: BaseException) -> bool:
    """Return whether the disk refused something, or the folder."""
    is_disks = isinstance(error, OSError) and error.errno in _REFUSALS
    return is_disks and not isinstance(error, GridflowError)


def refusal(what: str, error: OSError) -> str:
    """Return a sentence without its end: "can't write to WHAT on HOST: No space left on device"."""
    why = str(error.strerror or error).rstrip(".")
    return f"can't write to {what} on {socket.gethostname()}: {why}"


@contextlib.contextmanager
def writing_to(what: str, advice: str) -> Iterator[None]:
    """Turn a refusal, before anything is launched, into an error that says what to do.

    Raises `InvalidArgument`: Names what can't be written, the host, and the reason.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, GridflowError):
            raise
        raise InvalidArgument(f"{refusal(what, error)}. {advice}") from error


def writing_to_temporary() -> contextlib.AbstractContextManager[None]:
    """Return `writing_to` for the temporary folder of this process."""
    folder = tempfile.tempdir or "any temporary folder"
    return writing_to(str(folder), "Make room there, or set TMPDIR to another folder.")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], ending: str = "") -> Iterator[Path]:
    """Yield a temporary path to write a file or folder to, which then replaces the one at `path`.

    After an error nothing is left of it, and what was at `path` is unchanged. A link stays a link;
    devices and pipes are written to directly. The file keeps the mode of the old one.

    `path`: A local path; its folder must exist.
    `ending`: Suffix of the temporary name, for code that depends on it.
    Raises `OSError`: The folder doesn't exist, the disk is full, or permission is missing.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        yield target
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    beside = _beside(target, ending)
    try:
        yield beside
        if target.is_file() and beside.is_file():
            shutil.copymode(target, beside)
            sync(beside)  # otherwise a crash of the host could leave neither
        move(beside, target)
    except BaseException:
        _delete(beside)
        raise


def move(source: Path, target: Path) -> None:
    """Rename a file or folder over the target.

    A folder can't be renamed over another one, so the old one is briefly renamed.
    """
    if not (source.is_dir() and target.is_dir()):
        source.replace(target)
        return
    old = _beside(target)
    target.rename(old)
    try:
        source.rename(target)
    except BaseException:
        old.rename(target)
        raise
    _delete(old)


def _beside(target: Path, ending: str = "") -> Path:
    """Return a new path in the same folder that Spark and `gridflow tfrecord` ignore."""
    return target.with_name(f".gridflow-{secrets.token_hex(6)}.partial{ending}")


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
