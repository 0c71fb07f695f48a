"""A process between an agent and its training process, which ends everything that either leaves.

Run as a script by path, with the standard library only, so that it is up in a few milliseconds::

    python -I -S guardian.py COMMAND [ARG ...]

It starts the command in a process group of its own and adopts its orphaned descendants
(PR_SET_CHILD_SUBREAPER). When the command ends, it kills the rest, and ends with the same exit code
or signal. On SIGTERM it kills everything at once. The kernel also sends it SIGTERM when its agent
dies (PR_SET_PDEATHSIG). See prctl(2) for both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class _EndedError(Exception):
    """SIGTERM arrived."""


def main() -> None:
    """Guard one command."""
    agent = os.getppid()
    command = sys.argv[1:]
    prctl = ctypes.CDLL(None).prctl
    signal.signal(signal.SIGTERM, _end)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    status, child = 0, 0
    try:
        if os.getppid() == agent:  # else it died before prctl was there to tell
            child = _start(command, prctl)
            status = _wait(child)
    except _EndedError:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_rest(child)
    _end_like(status)


def _end(_signal: int, _frame: object) -> None:
    raise _EndedError


def _start(command: list[str], prctl: Callable[[int, int], int]) -> int:
    child = os.fork()  # safe: this process has one thread
    if child:
        with contextlib.suppress(OSError):  # the child may have been faster
            os.setpgid(child, child)
        os.closerange(3, 1024)  # the channel is the child's alone
        return child
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.execv(command[0], command)  # noqa: S606 (no shell wanted)
    finally:
        os._exit(127)


def _wait(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def kill_rest(child: int) -> None:
    """Kill the command's group and every descendant, also those in sessions of their own."""
    if child:
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        for pid in _children(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return  # whoever lost its parent came to us: no child means no descendant
        if pid == 0:
            time.sleep(0.005)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 (pathlib is slow to import)
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:  # noqa: PTH123
            found += [int(word) for word in file.read().split()]
    return found


def _end_like(status: int) -> None:
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has dumped its own
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


if __name__ == "__main__":
    main()
