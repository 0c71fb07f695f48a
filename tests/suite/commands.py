"""The command lines of processes that may end while somebody looks."""

from __future__ import annotations

import psutil


def words_of(process):
    """Return the words of a process's command line; none if it has ended, or isn't ours."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
