"""A temporary folder that is deleted even if the process that made it is killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gridflow._files.local import make_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Reads until the maker closes its end of the pipe, or the kernel does. In the latter case the
#: maker's children are being killed, too: what they still write, even a folder of the same name, is
#: deleted in the next round.
_JANITOR: Final = (
    "said=$(cat); for wait in 0 0.3 1 5; do "
    'sleep $wait; rm -rf -- "$1"; [ -e "$1" ] || [ "$said$wait" = 0 ] || exit 0; '
    "done"
)
_SECONDS: Final = 10.0
#: A socket's path has at most 107 bytes, and what Python's multiprocessing adds takes 32 of them.
_LONGEST: Final = 70


def task_prefix(job: str, task: object) -> str:
    """Return the prefix of the name of a task's folder."""
    return f"gridflow-{job}-{str(task).replace(':', '-')}-"


def local_folder() -> str | None:
    """Return the first of Spark's local folders for executors, if any."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[Path]:
    """Yield a short path to a folder, with room for socket names behind it."""
    if len(os.fsencode(folder)) <= _LONGEST:
        yield folder
        return
    with temporary_folder("gridflow-") as short:
        link = short / "t"
        link.symlink_to(folder)
        yield link


@contextlib.contextmanager
def temporary_folder(prefix: str, root: str | Path | None = None) -> Iterator[Path]:
    """Create a folder; delete it at the end of the block, or when this process dies in it.

    `prefix`: Of its name.
    `root`: The parent folder, created if missing. Default: the temporary folder.
    Raises `UnsafePath`: Another user created the root, in a place where any user can.
    """
    if root is not None:
        make_folders(Path(root))
    folder = Path(root or tempfile.gettempdir(), f"{prefix}{secrets.token_hex(6)}")
    with deleted_at_last(folder):  # before it exists, as this process may die at any time
        folder.mkdir(0o700)
        yield folder


@contextlib.contextmanager
def deleted_at_last(folder: Path) -> Iterator[Path]:
    """Delete a folder at the end of the block, or when this process dies in it."""
    janitor = subprocess.Popen(
        ["/bin/sh", "-c", _JANITOR, "gridflow-janitor", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # no signal to the maker's group reaches it
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if janitor.stdin is not None:
            with contextlib.suppress(OSError):  # it was killed
                janitor.stdin.write(b"deleted")
                janitor.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            janitor.wait(_SECONDS)
