"""The fork server: ``python -m gridflow._agent.forkserver.server``, started by `client`.

It has one thread and one loop. It imports what a request needs, and forks: training processes, or
the agents of a driver's machine. It runs nothing of any job. It ends with its owner (the executor's
Python daemon, or the driver), when it has been idle for long enough, or when it is told to retire.

`is_safe` and its like check whether a process that has imported TensorFlow may still be forked.
After a fork, only the thread that forked goes on. Locks of other threads, and a device driver's
state, are broken in the new process. So nothing may be initialised before: these checks look at the
libraries' own state if they have one, and otherwise at the kernel's view of the process (threads,
device files). None of them imports or initialises anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.forkserver import child, messages
from gridflow._agent.forkserver.messages import AGENT, TRAINING
from gridflow._files.procfs import began
from gridflow._keras.patches import private_parts
from gridflow._spec import backends
from gridflow._spec.backends import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


#: What is imported at the start: what every training process imports, whatever it runs...
_LIGHT: Final = (
    "gridflow._training.main",
    "gridflow._training.context",
    "gridflow._spec.job",
    "gridflow._spec.program",
    "gridflow._training.runtime",
    "gridflow._keras.patches.registry",
    "gridflow._keras.results",
    "cloudpickle",
)
#: ...or what agents import, with what they import later in addition.
_OF_AGENTS: Final = (
    "numpy",
    child.AGENT_PROGRAM,
    "gridflow._spec.job",
    "gridflow._feed.ingest.arrays",
    "gridflow._agent.forkserver.client",
)
#: What starts threads that survive a fork, and what it is imported before.
_ALGEBRA: Final = {"numpy": ("numpy",)} | dict.fromkeys(
    backends.BACKENDS, ("numpy", "scipy.linalg")
)
#: What is imported together with a backend of Keras.
_FEED: Final = (
    "gridflow._feed.normalize",
    "gridflow._feed.store",
    "gridflow._feed.dataset.distributed",
)
_REQUEST_SECONDS: Final = 5.0
_PAUSE: Final = 0.1
#: They take a tenth of a second on a quiet machine.
_PROBING_SECONDS: Final = 10.0
#: Without pidfds (Linux 5.3), how often the owner is checked.
_LOOK_SECONDS: Final = 1.0
_PEER: Final = struct.Struct("3i")
#: Deletes what lies in the file system when this process is killed.
_JANITOR: Final = 'cat; rm -f -- "$1"*; rmdir -- "${1%/*}" 2>/dev/null'


def main(arguments: Sequence[str]) -> None:
    """Serve until it is time to end.

    `arguments`: What it forks; path of the socket; descriptor of the listening socket; process id
        of the owner, and the moment at which that started (field 22 of its ``/proc/PID/stat``);
        seconds that it may be idle.
    """
    kind, path, descriptor, owner, began, idle = arguments
    listener = socket.socket(fileno=int(descriptor))
    server = ForkServer(kind, Path(path), listener, int(owner), int(began), float(idle))
    become = server.run()
    if become is None:
        os._exit(0)  # no exit handlers: they would end what was never started
    become()


class ForkServer:
    """Forks processes of one kind.

    `kind`: `TRAINING` or `AGENT`.
    `path`: Of the socket.
    `listener`: It listens already.
    `owner`: With whom it ends.
    `owner_began`: Tells the owner from a later process with the same id.
    `idle_seconds`: How long it stays without a living child.
    """

    def __init__(
        self,
        kind: str,
        path: Path,
        listener: socket.socket,
        owner: int,
        owner_began: int,
        idle_seconds: float,
    ) -> None:
        self._kind, self._path, self._listener = kind, path, listener
        self._listener.setblocking(False)
        self._owner, self._owner_began = owner, owner_began
        self._idle_seconds = idle_seconds
        #: Whom to tell how each of them ends; guardians say it themselves.
        self._children: dict[int, socket.socket | None] = {}
        self._idle_since = time.monotonic()
        self._retires = False
        self._failed: str | None = None
        self._survivors = {os.getpid()}
        self._environment = dict(os.environ)
        self._wishes: list[str] = []
        self._wake, _ = child.wake_by_signals()
        signal.signal(signal.SIGTERM, self._retire)
        self._owner_file = _pidfd(owner)
        self._janitor = subprocess.Popen(
            ["/bin/sh", "-c", _JANITOR, "gridflow-forkserver-janitor", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def run(self) -> Callable[[], None] | None:
        """Serve until it is time to end; then delete the socket.

        Returns: In a process that was forked, which returns, too: what it does.
        """
        server = os.getpid()
        try:
            self._import({TRAINING: _LIGHT, AGENT: _OF_AGENTS}[self._kind])
            self._idle_since = time.monotonic()  # to import took longer than some let it be idle
            while self._is_wanted():
                self._wait()
                self._reap()
                become = self._serve_all()
                if become is not None:
                    return become
                if self._wishes and not self._children:  # training isn't slowed down by an import
                    self._load(self._wishes)
                    self._wishes = []
                    self._idle_since = time.monotonic()
        finally:
            if os.getpid() == server:
                self._path.unlink(missing_ok=True)
        # Whoever connected before the name was gone.
        return self._serve_all()

    # ---------------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        if self._failed is not None or not self._owner_lives():
            return False
        idle = time.monotonic() - self._idle_since
        limit = 0.0 if self._retires else self._idle_seconds
        return bool(self._children) or idle < limit

    def _owner_lives(self) -> bool:
        return began(self._owner) == self._owner_began

    def _look_at_owner(self, *_: object) -> None:
        if not self._owner_lives():
            self._path.unlink(missing_ok=True)
            os._exit(0)

    def _retire(self, *_: object) -> None:
        self._retires = True

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        limits = [] if self._owner_file is not None else [_LOOK_SECONDS]
        if self._owner_file is not None:
            poll.register(self._owner_file, select.POLLIN)
        if not self._children:
            left = self._idle_seconds - (time.monotonic() - self._idle_since)
            limits.append(0.0 if self._retires else max(left, 0.0) + 0.01)
        poll.poll(1000 * min(limits) if limits else None)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 1 << 12)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._children:
                child.say_end(self._children.pop(pid), status)
                self._idle_since = time.monotonic()

    def _serve_all(self) -> Callable[[], None] | None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return None
            except OSError:  # there are no descriptors: it would be woken again at once
                time.sleep(_PAUSE)
                return None
            request, descriptors = self._request_of(connection)
            become = None
            # An agent that is gone, or that no longer waits, isn't answered.
            with contextlib.suppress(OSError, KeyError, TypeError, ValueError, AttributeError):
                become = self._answer(connection, request, descriptors)
            if become is not None:
                return become
            if request:
                self._idle_since = time.monotonic()
            for descriptor in descriptors:
                os.close(descriptor)
            connection.close()

    def _request_of(self, connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
        """Return a request and its descriptors; nothing if it is a stranger's."""
        connection.settimeout(_REQUEST_SECONDS)
        _, uid, _ = _PEER.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )
        if uid != os.getuid():
            return {}, []
        try:
            return messages.receive(connection) or ({}, [])
        except (OSError, messages.Malformed):
            return {}, []

    def _answer(
        self, connection: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> Callable[[], None] | None:
        """Do what is asked; return what to do in a process that was forked."""
        match request.get("kind"):
            case "fork":
                self._idle_seconds = float(request["idle_seconds"])
                os.utime(self._path)
                refusal = self._load(request["packages"]) or why_not(self._survivors)
                if self._kind == AGENT and self._owner_file is None:
                    refusal = "the kernel has no pidfds (Linux 5.3)"
                if refusal is not None:
                    messages.send(connection, {"kind": "refused", "why": refusal}, None)
                    return None
                messages.send(connection, {"kind": "accepted"}, None)
                return self._fork(connection, request, descriptors)
            case "load":
                self._wishes += request["packages"]
            case "retire":
                self._retires = True
        return None

    def _load(self, packages: list[str]) -> str | None:
        """Import what a process needs; return why that failed."""
        missing = [
            name for name in packages if name in backends.BACKENDS and name not in sys.modules
        ]
        if missing and self._failed is None:
            self._import([each for name in missing for each in _needed_with(name)])
        return self._failed

    def _import(self, names: Sequence[str]) -> None:
        gc.disable()
        # An import is long: the end of the owner isn't to wait for it.
        signal.signal(signal.SIGALRM, self._look_at_owner)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_SECONDS, _LOOK_SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for name in names:
                    self._import_algebra(_ALGEBRA.get(name, ()))
                    importlib.import_module(name)
            _look_ahead()
        except BaseException as error:  # noqa: BLE001 (the plain way says it in full)
            # What is half imported is for nobody.
            self._failed = f"importing {name} failed there ({type(error).__name__}: {error})"
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # No collection touches what is shared, here or in a child.
        gc.freeze()
        let_go_of_code()

    def _import_algebra(self, names: Sequence[str]) -> None:
        """Import what starts threads that survive a fork, so that they are known."""
        for name in names:
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                continue
            before = threads()
            importlib.import_module(name)
            self._survivors |= threads() - before

    def _fork(
        self, connection: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> Callable[[], None] | None:
        with warnings.catch_warnings():
            # Python warns of threads, jax of its own: both were looked at.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid:
            self._children[pid] = None
            if self._kind == AGENT:
                self._children[pid] = connection.dup()
                handle = os.pidfd_open(pid)  # its id may be another process's by then
                messages.send(connection, {"kind": "forked", "pid": pid}, [handle])
                os.close(handle)
            return None
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        if self._kind == AGENT:
            return functools.partial(child.agent, request, descriptors, os.getppid())
        return functools.partial(child.guard, connection, request, descriptors, self._by_imports())

    def _by_imports(self) -> dict[str, str]:
        return {n: v for n, v in os.environ.items() if self._environment.get(n) != v}


def _needed_with(backend: str) -> tuple[str, ...]:
    facts = backends.of(backend)
    patched = (f"gridflow._keras.patches.{kind}.{facts.patches}" for kind in ("bugs", "hooks"))
    return backend, "keras", *_FEED, *facts.imported_with, *patched


def _look_ahead() -> None:
    """Patch Keras on trial, once for all that are forked, in a process of its own.

    Probes leave threads behind, with which this process couldn't be forked any more. Where they
    fail, or take too long, each training process finds out by itself.
    """
    if "keras" not in sys.modules:
        return
    registry = sys.modules["gridflow._keras.patches.registry"]
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as answer, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the threads of linear algebra
        pid = os.fork()
        if not pid:
            try:
                os.write(writing, json.dumps(registry.patch_on_trial()).encode())
            finally:
                os._exit(0)
        os.close(writing)
        try:
            if select.select([answer], [], [], _PROBING_SECONDS)[0]:
                registry.remember(json.loads(answer.read() or b"[]"))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


# Unmaps libraries' code that the server no longer needs.
#
# Loading TensorFlow touches hundreds of MiB of its libraries' files. While the server maps those
# pages, they count as its memory and the kernel can't reuse them; a forked training process
# doesn't inherit such mappings anyway. Unmapped, they stay in the page cache, where the next
# process finds them without reading the disk.

_MADV_DONTNEED: Final = 4  # <bits/mman.h> of Linux
_MAPS: Final = Path("/proc/self/smaps")


def let_go_of_code() -> int:
    """Unmap pages of files that this process never wrote; return how many bytes those were.

    Only mappings that can't be written and have no page of their own (relocations do) are taken:
    what is read there again comes from the file.
    """
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    freed = 0
    for start, end, resident in _unwritten():
        if advise(start, end - start, _MADV_DONTNEED) == 0:
            freed += resident
    return freed


def _unwritten() -> list[tuple[int, int, int]]:
    """Return start, end and resident bytes of the mappings of files that were only read."""
    found: list[tuple[int, int, int]] = []
    place: tuple[int, int] | None = None
    resident = 0
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # nothing hangs on it
        return []
    for line in lines:
        name, _, rest = line.partition(" ")
        if "-" in name:
            words = rest.split(maxsplit=4)
            is_file = words[-1].startswith("/")
            start, end = (int(each, 16) for each in name.split("-"))
            place = (start, end) if is_file and words[0][1:] in ("-xp", "--p") else None
        elif name == "Rss:":
            resident = int(rest.split()[0]) * 1024
        elif name == "Anonymous:" and place is not None and resident and rest.split()[0] == "0":
            found.append((*place, resident))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
