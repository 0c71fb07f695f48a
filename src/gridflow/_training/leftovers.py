"""Files left in a task's folder, which is deleted at the end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from gridflow._spec.printable import printable

#: Subfolder of the task's folder for gridflow's own files.
OWN_FOLDER: Final = ".gridflow"
_MOST_NAMES: Final = 5
_MOST_FILES: Final = 10_000
_STEP: Final = 1024


def describe(folder: Path, script: str | None = None) -> str:
    """Return a line that names the user's files in a folder and says how to keep them, or "".

    Hidden files, Python's caches and the copy of the running script don't count.
    """
    places = (each for each in sorted(folder.iterdir()) if str(each) != script)
    found = [each for each in places if not each.name.startswith((".", "__"))]
    sized = [(each, *_size(each)) for each in found]
    left = [(each, files, size) for each, files, size in sized if files]
    if not left:
        return ""
    names = ", ".join(_words(*each) for each in left[:_MOST_NAMES])
    more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
    return (
        f"gridflow: deleted with this task's folder: {printable(names)}{more}. To keep such files, "
        "write them to a full path of storage that outlives the task, or return them."
    )


def _size(path: Path) -> tuple[int, int]:
    """Return the number of files and their total size in bytes."""
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size
    files = size = 0
    for parent, _, names in os.walk(path):
        for name in names:
            files += 1
            size += Path(parent, name).lstat().st_size
        if files > _MOST_FILES:
            break
    return files, size


def _words(path: Path, files: int, size: int) -> str:
    is_folder = path.is_dir() and not path.is_symlink()
    count = f"{files:,} file{'s' if files > 1 else ''}, " if is_folder else ""
    return f"{path.name}{'/' if is_folder else ''} ({count}{_bytes(size)})"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:,.0f} {unit}"
        size /= _STEP
    return f"{size:,.1f} GiB"
