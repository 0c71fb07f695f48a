"""A temporary folder that is deleted even if the process that made it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Reads until the maker's end of the pipe is closed, by itself or by the kernel. What the maker's
#: children still write is gone in the next round: they are being killed, too.
_JANITOR: Final = (
    'cat; for wait in 0 0.2 1 5; do sleep $wait; rm -rf -- "$1"; [ -e "$1" ] || exit 0; done'
)
_SECONDS: Final = 10.0
#: A socket's path has at most 107 bytes, and what Python's multiprocessing adds takes 32 of them.
_LONGEST: Final = 70


def task_prefix(job: str, task: object) -> str:
    """Return what the name of a task's folder begins with."""
    return f"gridflow-{job}-{str(task).replace(':', '-')}-"


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[Path]:
    """Give a folder during the block by a path that has room for names of sockets behind it."""
    if len(os.fsencode(folder)) <= _LONGEST:
        yield folder
        return
    with temporary_folder("gridflow-") as short:
        link = short / "t"
        link.symlink_to(folder)
        yield link


@contextlib.contextmanager
def temporary_folder(prefix: str, root: str | Path | None = None) -> Iterator[Path]:
    """Make a folder, delete it at the end of the block, or when this process dies in it.

    Parameters
    ----------
    prefix : str
        Of its name.
    root : str or Path, optional
        Where; made if need be. Default: the temporary folder.
    """
    if root is not None:
        Path(root).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
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
            janitor.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            janitor.wait(_SECONDS)
