"""After the fork: an agent; or a guardian, and below it the training process.

They become what they would be if they had been started: see `gridflow._agent.main` for the agent,
`gridflow._agent.guardian` for the guardian, and `gridflow._agent.process` for the environment of a
started training process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import random
import select
import signal
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gridflow._agent import guardian
from gridflow._agent.forkserver import messages
from gridflow._files.procfs import behind_name
from gridflow._gpu import devices
from gridflow._wire.channel import CHANNEL_VARIABLE

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

_prctl = ctypes.CDLL(None).prctl
AGENT_PROGRAM: Final = "gridflow._agent.main"
#: Where the arguments lie in memory: fields 48 and 49 of proc(5)'s stat, counted behind the name.
_ARGUMENTS: Final = slice(45, 47)


def agent(request: dict[str, Any], descriptors: Sequence[int], server: int) -> None:
    """Become what ``python -m gridflow._agent.main`` is.

    `descriptors`: What it reads from, and where its errors go.
    `server`: The process that forked this one. It ends with that.
    """
    os.setsid()
    _prctl(guardian.PR_SET_PDEATHSIG, signal.SIGTERM)
    fresh_signals()
    payload, errors = descriptors
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor, place in ((payload, 0), (null, 1), (errors, 2)):
        os.dup2(descriptor, place)
        os.close(descriptor)
    close_all_but()
    _move_in(request, request["environment"])
    devices.forked_with(request["environment"])
    main = importlib.import_module(AGENT_PROGRAM)
    sys.argv = [str(main.__file__)]
    main.main(server)


def guard(
    connection: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    by_imports: Mapping[str, str],
) -> NoReturn:
    """Watch a training process, as `_guard` does, and exit without Python's exit handlers."""
    try:
        _guard(connection, request, descriptors, by_imports)
    finally:
        os._exit(1)


def _guard(
    connection: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    by_imports: Mapping[str, str],
) -> NoReturn:
    """Fork the training process, watch it and its agent, and end with everything that it left.

    `connection`: The leash: when the agent closes it, or dies, all is killed.
    `descriptors`: Of the training process: its output, its channel, and what else it is to hold.
    `by_imports`: Environment variables that libraries set when they were imported.
    """
    os.setsid()
    fresh_signals()
    wake, waker = wake_by_signals()
    _prctl(guardian.PR_SET_CHILD_SUBREAPER, 1)
    watcher = os.getpid()
    process = os.fork()  # safe: one thread
    if not process:
        try:
            _train(watcher, request, descriptors, by_imports)
        except BaseException:  # noqa: BLE001 (into the task's log, as Python itself would)
            traceback.print_exc()
        finally:
            os._exit(127)
    with contextlib.suppress(OSError):  # the child may have been faster
        os.setpgid(process, process)
    close_all_but(connection.fileno(), wake, waker)
    show_command([sys.executable, "-I", "-S", guardian.__file__, *request["command"]])
    status = signal.SIGKILL.value
    with contextlib.suppress(OSError):
        messages.send(connection, {"kind": "forked", "pid": watcher}, None)
        status = _watch(process, connection, wake)
    guardian.kill_rest(process)
    say_end(connection, status)
    os._exit(0)


def say_end(connection: socket.socket | None, status: int) -> None:
    """Tell how a process has ended to whoever asked for it, and close the connection."""
    if connection is not None:
        with connection, contextlib.suppress(OSError):
            messages.send(connection, {"kind": "ended", "status": status}, None)


def _watch(process: int, connection: socket.socket, wake: int) -> int:
    """Return the process's status once it has ended, or its agent has, or SIGTERM came."""
    is_told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: is_told.append(number))
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    poll.register(connection, select.POLLIN | select.POLLRDHUP)
    while True:
        ready = dict(poll.poll())
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 1 << 12)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == process:
                    return ended[1]
        if is_told or connection.fileno() in ready:  # agents send nothing more: this is their end
            return signal.SIGKILL.value


def _train(
    watcher: int,
    request: dict[str, Any],
    descriptors: list[int],
    by_imports: Mapping[str, str],
) -> None:
    """Become what ``python -m gridflow._training.main`` is."""
    os.setpgid(0, 0)
    _prctl(guardian.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:
        return
    fresh_signals()
    output, channel, *inherited = descriptors
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    close_all_but(channel, *inherited)
    # With what libraries set while the server imported them, as they would have done here.
    environment = {**request["environment"], **by_imports, CHANNEL_VARIABLE: str(channel)}
    _move_in(request, environment)
    from gridflow._training import main

    sys.argv = [str(main.__file__)]
    main.main()


def _move_in(request: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Take the place, the environment and the command line of the process that was asked for."""
    os.umask(request["umask"])
    os.chdir(request["work_dir"])
    os.environ.clear()
    os.environ.update(environment)
    fresh_python(request["work_dir"])
    show_command(request["command"])


def wake_by_signals() -> tuple[int, int]:
    """Return both ends of a pipe that becomes readable when a child ends or a signal arrives."""
    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # else nothing is written to the pipe
    signal.set_wakeup_fd(waker)
    return wake, waker


def fresh_signals() -> None:
    """Take signals as a new process does."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def fresh_python(work_dir: str) -> None:
    """Reset what would be different in a new interpreter."""
    sys.path[0] = work_dir  # as -m does
    sys.modules["__main__"] = types.ModuleType("__main__")
    # Directories as the server saw them, and archives: modules may have changed since.
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    tempfile.tempdir = None
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    gc.enable()


def close_all_but(*kept: int) -> None:
    """Close the server's descriptors, and the other ends of this process's own."""
    stay = {0, 1, 2, *kept}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (names are all it takes)
        descriptor = int(name)
        if descriptor not in stay and _is_ours(descriptor):
            os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    """Whether it is a socket, a pipe or a pidfd, which no library opens at import."""
    try:
        target = str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return False  # that of the listing itself
    return target.startswith(("socket:", "pipe:", "anon_inode:[pidfd]", "pidfd:"))


def show_command(command: list[str]) -> None:
    """Let ``ps`` show what it would show of a started process, not the server's command line.

    The kernel shows the memory where the arguments were at the start; when its last byte isn't
    zero, only up to the first that is (``get_mm_proctitle`` in Linux's fs/proc/base.c).
    """
    begin, end = (int(field) for field in behind_name(os.getpid())[_ARGUMENTS])
    room = end - begin
    words = " ".join(command).encode()[: room - 2]
    ctypes.memset(begin, ord(" "), room)
    ctypes.memmove(begin, words + b"\0", len(words) + 1)
