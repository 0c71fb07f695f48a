"""Finds or starts a host's fork server, and requests processes: for agents, and for the driver.

Two training processes that differ in anything that a library could see at import may not share a
server. Only what is known
to be read later, or never, is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gridflow._agent.forkserver import messages
from gridflow._files.local import check_own, private_folder, write_whole
from gridflow._files.procfs import began, is_below, is_stopped, umask
from gridflow._spec.gpus import VISIBLE
from gridflow._wire.channel import AGENT_VARIABLE, CHANNEL_VARIABLE, PRELOAD_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


#: Set in the forked process: CUDA, TensorFlow and JAX read these when they first use a device, and
#: `gridflow._agent.forkserver.server` sees to it that none was used before.
LATE: Final = frozenset(
    {
        AGENT_VARIABLE,
        CHANNEL_VARIABLE,
        PRELOAD_VARIABLE,
        VISIBLE,
        "CUDA_DEVICE_ORDER",
        "TF_CONFIG",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        "TMPDIR",
        "TEMP",
        "TMP",
    }
)
#: Of shells, terminals and test runners: they change from run to run, and no library reads them.
_NOISE: Final = frozenset(
    {"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL"}
)
#: What Spark tells its own Python workers.
_SPARKS: Final = ("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_DAEMON_", "PYTHON_UDF_")


def fingerprint(environment: Mapping[str, str], versions: Mapping[str, str]) -> str:
    """Return the fingerprint: processes with the same one may share a server.

    `environment`: Of the training process, ``PYTHONPATH`` (what the agent can import) and the job's
        ``env=`` included.
    `versions`: Of the packages, as they are installed now.
    """
    seen = {name: value for name, value in environment.items() if matters(name)}
    interpreter = [sys.executable, sys.version]
    files = [_own_sources(), _keras_settings(environment)]
    facts = [interpreter, sorted(seen.items()), sorted(versions.items()), files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a process's environment that its server has from the start."""
    return {name: value for name, value in environment.items() if name not in LATE}


def matters(name: str) -> bool:
    """Return whether a library could see a variable of the environment as it is imported."""
    return name not in LATE and name not in _NOISE and not name.startswith(_SPARKS)


def _keras_settings(environment: Mapping[str, str]) -> str:
    """Return the file of settings that Keras reads when it is imported."""
    folder = environment.get("KERAS_HOME") or Path(environment.get("HOME", "/")) / ".keras"
    try:
        return Path(folder, "keras.json").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _own_sources() -> int:
    """Return the moment of the last change of gridflow itself, which may be edited in place."""
    root = Path(__file__).parents[2]
    if not root.is_dir():  # inside of an archive
        return next((each.stat().st_mtime_ns for each in root.parents if each.is_file()), 0)
    newest = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)  # noqa: PTH116, PTH118 (pathlib takes three times as long)
    return newest


_PROGRAM: Final = "gridflow._agent.forkserver.server"
_BACKLOG: Final = 1024
#: How many servers with different fingerprints an owner keeps; each uses some 300 MB with
#: TensorFlow. A driver's environment seldom changes.
_MOST_SERVERS: Final = {messages.TRAINING: 3, messages.AGENT: 1}
_SEND_SECONDS: Final = 5.0
#: Whoever holds the lock of the owner's folder starts a server at most, a matter of milliseconds.
_LOCK_SECONDS: Final = 5.0
_LOCK_PAUSE_SECONDS: Final = 0.01
#: Of Linux on 64 bits: 2 to the 22nd.
_MOST_PID: Final = 1 << 22
#: An import takes 5 seconds on a quiet machine, 30 on a busy one. A server that hasn't answered by
#: then is frozen or broken.
_PATIENCE_SECONDS: Final = 120.0
#: How often it is asked whether a server still answers.
_LOOK_SECONDS: Final = 0.2
#: Whether a request that nobody has answered yet was heard after all.
_LAST_LOOK_SECONDS: Final = 0.2
#: Started by this process: polled once in a while, so that they don't stay as zombies.
_started: list[subprocess.Popen[bytes]] = []
os.register_at_fork(after_in_child=_started.clear)


class NotForked(Exception):
    """A process must be started, not forked; the text says why."""


class ForkServers:
    """The fork servers of an owner on this host, one for each fingerprint.

    `kind`: What they fork: `messages.TRAINING` or `messages.AGENT`.
    `idle_seconds`: How long a server stays without a live child.
    `versions`: The packages' versions, as the agent found them.
    `owner`: They end with this process. Default: this one's parent, which is the executor's Python
        daemon on Spark, and the driver with ``LocalLauncher``.
    """

    def __init__(
        self,
        idle_seconds: float,
        versions: Mapping[str, str],
        owner: int | None = None,
        kind: str = messages.TRAINING,
    ) -> None:
        self._idle_seconds, self._versions, self._kind = idle_seconds, versions, kind
        self._owner = owner or os.getppid()
        self._owner_began = began(self._owner)
        self._lock_seconds = _LOCK_SECONDS

    def load(self, environment: Mapping[str, str], packages: Sequence[str]) -> None:
        """Let the server import packages once it has no child; start it if needed."""
        with contextlib.suppress(OSError, NotForked):
            connection, _ = self._connect(environment)
            with connection:
                messages.send(connection, {"kind": "load", "packages": list(packages)}, None)

    def fork(
        self,
        command: list[str],
        *,
        packages: Sequence[str] = (),
        work_dir: Path,
        environment: Mapping[str, str],
        descriptors: list[int],
        on_change: Callable[[], None] = lambda: None,
    ) -> Forked:
        """Request a process; return at once.

        `command`: What ``ps`` should show for it.
        `packages`: What it imports in any case.
        `descriptors`: Of a training process: its output, its channel, and what else it is to hold.
            Of an agent: what it reads from, and where its errors go.
        `on_change`: Called once it is forked, refused or ended, from a thread.
        Raises `NotForked`: There is no server, and starting one failed.
        """
        request = {
            "kind": "fork",
            "command": command,
            "packages": list(packages),
            "work_dir": str(work_dir),
            "environment": dict(environment),
            "umask": umask(),
            "idle_seconds": self._idle_seconds,
        }
        try:
            try:
                connection, server = self._ask(environment, request, descriptors)
            except (BrokenPipeError, ConnectionResetError):  # it has ended just now, being idle
                connection, server = self._ask(environment, request, descriptors)
        except OSError as error:
            raise NotForked(f"can't reach the fork server: {error}") from error
        return Forked(connection, server, on_change)

    # ---------------------------------------------------------------------------------------------

    def _ask(
        self, environment: Mapping[str, str], request: dict[str, Any], descriptors: list[int]
    ) -> tuple[socket.socket, int]:
        """Send a request; return the connection and the server's process id."""
        connection, server = self._connect(environment)
        try:
            messages.send(connection, request, descriptors)
        except BaseException:
            connection.close()
            raise
        return connection, server

    def _connect(self, environment: Mapping[str, str]) -> tuple[socket.socket, int]:
        """Return a connection to the server, started if need be, and its process id."""
        for each in [each for each in _started if each.poll() is not None]:
            _started.remove(each)
        if not self._owner_began:
            raise NotForked("its owner has ended")
        mark = f"{self._kind}-{fingerprint(environment, self._versions)}"
        with self._folder() as (folder, place):
            for path in sorted(folder.glob(f"{mark}-*.socket")):
                connection = _dial(place, path.name)
                if connection is None:
                    continue
                server = _pid_of(path)
                if server is not None and self._is_counted(server):
                    return connection, server
                _retire(connection)
            self._retire_the_oldest(folder, place)
            return self._start(folder, place, f"{mark}-{uuid.uuid4().hex[:8]}.socket", environment)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[tuple[Path, int]]:
        """Give the owner's folder and a descriptor of it, locked against other agents."""
        root = Path(tempfile.gettempdir())
        folder = root / f"gridflow-forkserver-{os.getuid()}-{self._owner}-{self._owner_began}"
        for _ in range(10):  # a server that ends just now deletes it
            try:
                private_folder(folder)
                place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                self._lock(place, folder)
                opened = os.fstat(place)
                # Otherwise it was deleted, or exchanged, meanwhile.
                if opened.st_nlink and os.path.samestat(opened, check_own(folder)):
                    yield folder, place
                    return
            finally:
                os.close(place)
        raise NotForked(f"{folder} keeps vanishing")

    def _lock(self, place: int, folder: Path) -> None:
        give_up = time.monotonic() + self._lock_seconds
        while True:
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < give_up:
                    time.sleep(_LOCK_PAUSE_SECONDS)
                    continue
                self._lock_seconds = 0.0  # the next time it isn't waited for
                raise NotForked(
                    f"another agent has held the lock of {folder} for {_LOCK_SECONDS:g} seconds; "
                    "it is probably frozen (SIGSTOP)"
                ) from None
            self._lock_seconds = _LOCK_SECONDS
            return

    def _start(
        self, folder: Path, place: int, name: str, environment: Mapping[str, str]
    ) -> tuple[socket.socket, int]:
        path = folder / name
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(_short(place, name))
            listener.listen(_BACKLOG)
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", _PROGRAM, self._kind),
                    *(str(path), str(listener.fileno())),
                    *(str(self._owner), str(self._owner_began), str(self._idle_seconds)),
                ],
                stdin=subprocess.DEVNULL,
                # It prints what libraries say at import; if that fails, the plain way says it, too.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=early(environment),
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        _started.append(process)
        try:
            write_whole(_pid_file(path), str(process.pid))
        except BaseException:  # no room: nobody could use a server without it
            process.kill()
            path.unlink(missing_ok=True)
            raise
        connection = _dial(place, name)
        if connection is None:
            raise NotForked("the fork server exited at once")
        return connection, process.pid

    def _retire_the_oldest(self, folder: Path, place: int) -> None:
        there = folder.glob(f"{self._kind}-*.socket")
        by_use = sorted(there, key=lambda path: path.stat().st_mtime_ns)
        for path in by_use[: max(0, len(by_use) - _MOST_SERVERS[self._kind] + 1)]:
            connection = _dial(place, path.name)
            if connection is not None:
                _retire(connection)

    def _is_counted(self, server: int) -> bool:
        """Return whether YARN, if it runs this container, sees what a server forks.

        YARN finds a container's processes by their parents. A server whose agent has ended no
        longer belongs to the container.
        """
        return "CONTAINER_ID" not in os.environ or is_below(server, self._owner)


def retire_all(seconds: float) -> None:
    """Let the servers that this process has started end, and wait for those without a process."""
    for server in _started:
        server.terminate()
    for server in _started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)


class Forked:
    """A process that a fork server forks, a guardian or an agent; used like a ``Popen``.

    `connection`: The connection of the request. Closing it ends a guardian, and all that it guards.
    `server`: Process id of the server.
    `on_change`: Called when an attribute has changed.
    `is_forked`: Whether the process was forked.
    `refusal`: Why there will be no process.
    """

    def __init__(
        self, connection: socket.socket, server: int, on_change: Callable[[], None]
    ) -> None:
        self._connection, self._server, self._on_change = connection, server, on_change
        self._give_up = time.monotonic() + _PATIENCE_SECONDS
        self._heard, self._settled = threading.Event(), threading.Event()
        self._over = threading.Event()
        self._pid: int | None = None
        #: Of an agent: refers to it even if its id is another process's by now.
        self._handle: int | None = None
        self._code: int | None = None
        self.is_forked = False
        self.refusal: str | None = None
        connection.settimeout(None)
        self._thread = threading.Thread(target=self._listen, name="gridflow-leash", daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        """Close the handle; earlier, another thread might be waiting for it."""
        if self._handle is not None:
            os.close(self._handle)

    def settle(self) -> None:
        """Wait until it is forked.

        Raises `NotForked`: It won't be.
        """
        while not self._settled.wait(_LOOK_SECONDS):
            self.poll()
        if not self.is_forked:
            raise NotForked(str(self.refusal))

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number, or None while it runs."""
        if not self._heard.is_set():
            if is_stopped(self._server):
                self._refuse_forever("is frozen (SIGSTOP)")
            elif time.monotonic() > self._give_up:
                self._refuse_forever(f"didn't answer within {_PATIENCE_SECONDS:g} seconds")
        return self._code

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end.

        Raises `subprocess.TimeoutExpired`: The process still runs.
        """
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired("the forked process", timeout or 0.0)
        return self._code

    def terminate(self) -> None:
        """Let a guardian end everything."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        if not self._heard.wait(_LAST_LOOK_SECONDS):
            self._refuse("it was ended before it started")

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self._pid is not None and not self._over.is_set():
                os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill it; with a guardian, which doesn't react otherwise, its process."""
        self.send_signal(signal.SIGKILL)

    def _refuse_forever(self, why: str) -> None:
        """Kill a useless server: a frozen one couldn't even end with its owner."""
        self._refuse(f"the fork server {why}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGKILL)

    def _refuse(self, why: str) -> None:
        """Give up on a server that hasn't answered, by closing the connection."""
        self.refusal = self.refusal or why
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._over.set()

    def _listen(self) -> None:
        with self._connection:
            try:
                while (received := messages.receive(self._connection)) is not None:
                    self._take(*received)
            except (OSError, messages.Malformed, KeyError, TypeError, ValueError):
                pass
            if self.is_forked and self._code is None:
                self._code = self._code_untold()
            elif not self.is_forked and self.refusal is None:
                self.refusal = "the fork server exited before it forked"
        for each in (self._heard, self._settled, self._over):
            each.set()
        self._on_change()

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        match message["kind"]:
            case "accepted":
                self._heard.set()
            case "refused":
                self.refusal = str(message["why"])
            case "forked":
                (self._handle,) = descriptors or (None,)
                self._pid, self.is_forked = int(message["pid"]), True
                self._settled.set()
                self._on_change()
            case "ended":
                self._code = os.waitstatus_to_exitcode(int(message["status"]))

    def _code_untold(self) -> int:
        """Return how a process ended of which nothing was said."""
        if self._handle is None:
            return -signal.SIGKILL  # nothing else ends a guardian silently
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        poll.poll()
        return -signal.SIGTERM  # which agents get when their server was killed


def _pid_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.pid")


def _pid_of(path: Path) -> int | None:
    """Return the process id of a server; None if its file is missing or damaged."""
    try:
        pid = int(_pid_file(path).read_text())
    except (OSError, ValueError):
        return None
    return pid if 1 < pid <= _MOST_PID else None


def _dial(place: int, name: str) -> socket.socket | None:
    """Return a connection to a server; None if it is gone."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_SEND_SECONDS)
    try:
        connection.connect(_short(place, name))
    except OSError:
        connection.close()
        return None
    return connection


def _retire(connection: socket.socket) -> None:
    """Let a server end once it has no child."""
    with connection, contextlib.suppress(OSError):
        messages.send(connection, {"kind": "retire"}, None)


def _short(place: int, name: str) -> str:
    """Return a path to a socket that fits into an address, however long the folder's path is."""
    return f"/proc/self/fd/{place}/{name}"
