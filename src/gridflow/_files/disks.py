"""What a disk refuses, in words: which folder on which host, and why."""

from __future__ import annotations

import contextlib
import errno
import socket
import tempfile
from typing import TYPE_CHECKING, Final

from gridflow.errors import GridflowError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

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
