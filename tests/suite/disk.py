"""A disk that has no room left, for this process."""

from __future__ import annotations

import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(size):
    """Let no file become larger, as a full disk does: writes fail with an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
