"""Replaces user files: the new one is written beside the old one, and renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gridflow._files.local import sync

if TYPE_CHECKING:
    from collections.abc import Iterator


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
