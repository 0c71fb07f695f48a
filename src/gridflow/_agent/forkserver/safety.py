"""Checks whether a process that has imported TensorFlow may still be forked.

After a fork, only the thread that forked goes on. Locks of other threads, and a device driver's
state, are broken in the new process. So nothing may be initialised before: these checks look at the
libraries' own state if they have one, and otherwise at the kernel's view of the process (threads,
device files). None of them imports or initialises anything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

from gridflow._keras.patches import private_parts
from gridflow._spec.backends import BACKENDS

_TASKS: Final = Path("/proc/self/task")
_DESCRIPTORS: Final = Path("/proc/self/fd")
#: Device files of GPUs: open as soon as a driver is initialised.
_DEVICES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
#: Threads of allocators that restart themselves in a forked process (pthread_atfork).
_ALLOCATORS: Final = frozenset({"jemalloc_bg_thd"})


def threads() -> set[int]:
    """Return the ids of this process's threads."""
    return {int(each) for each in os.listdir(_TASKS)}  # noqa: PTH208 (names are all it takes)


def why_not(survivors: set[int]) -> str | None:
    """Return why this process must not be forked now; None if it may.

    `survivors`: Threads that are known to survive a fork, this one included: the pools of numpy's
        and scipy's linear algebra (OpenBLAS ends them before a fork and starts them again when
        needed).
    """
    return _initialized() or _strange_thread(survivors) or _open_device()


def _initialized() -> str | None:
    for backend in BACKENDS:
        cuda: Any = sys.modules.get(f"{backend}.cuda")
        if cuda is not None and cuda.is_initialized():
            return f"{backend} uses CUDA already"
    return private_parts.is_started()


def _strange_thread(survivors: set[int]) -> str | None:
    for thread in threads() - survivors:
        try:
            name = (_TASKS / str(thread) / "comm").read_text().strip()
        except OSError:
            continue  # it has ended meanwhile
        if name not in _ALLOCATORS:
            return f"a thread named {name!r} runs in it"
    return None


def _open_device() -> str | None:
    for descriptor in os.listdir(_DESCRIPTORS):  # noqa: PTH208 (names are all it takes)
        try:
            target = str((_DESCRIPTORS / descriptor).readlink())
        except OSError:
            continue
        if target.startswith(_DEVICES):
            return f"it has {target} open"
    return None
