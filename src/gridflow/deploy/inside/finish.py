"""Messages between a job's tasks: when they start and how they end.

Servers and evaluators end once all training tasks have reported success. All tasks end once one
has reported a permanent failure, because they would wait for it forever. Training tasks end
together. Messages contain only task names, start ids and exit codes. Like TensorFlow's own ports,
these ports aren't authenticated, so they belong in a network of the job's own.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from gridflow._wire.acceptor import Acceptor
from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

_MOST_BYTES: Final = 1024
_CALL_SECONDS: Final = 5.0
_BACKLOG: Final = 128

#: What resolvers say of a name that doesn't exist, or has no address; EAI_AGAIN is no answer.
_NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)

#: Addresses, by role, of the tasks that end with the training, and of all others.
FINISH: Final = "GRIDFLOW_FINISH"
GIVE_UP: Final = "GRIDFLOW_GIVE_UP"
#: Addresses of the tasks that end together, on targets whose controller stops the others.
MEET: Final = "GRIDFLOW_MEET"


def finish_addresses(environ: Mapping[str, str], name: str = FINISH) -> dict[str, list[str]]:
    """Return the addresses in one of these variables, by role."""
    text = environ.get(name, "")
    if not text:
        return {}
    try:
        tree = json.loads(text)
        return {str(role): [str(address) for address in hosts] for role, hosts in tree.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{name} can't be read ({error}): {text!r}.") from error


def call(address: str, **message: Any) -> str | None:
    """Send a message to an address; return the receiver's start id, None if it wasn't received.

    The start id is empty if the receiver has none.

    Raises `OSError`: If the address can't be reached; see `is_gone`.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_CALL_SECONDS) as connection:
        connection.sendall(json.dumps(message).encode() + b"\n")
        word, _, start = connection.recv(_MOST_BYTES).decode(errors="replace").partition(" ")
    return start.strip() if word.strip() == "ok" else None


def is_gone(error: OSError) -> bool:
    """Return whether an error of `call` says that nobody is there, and not only out of reach.

    A name server or a network that doesn't answer says nothing about the receiver.
    """
    return isinstance(error, ConnectionRefusedError) or (
        isinstance(error, socket.gaierror) and error.errno in _NO_SUCH_NAME
    )


class FinishListener:
    """Listens on a task's second port for messages about other tasks' ends.

    `address`: ``host:port``. Binds the port on all interfaces, because the name belongs to the
        target; for ``localhost`` it binds only the loopback interface.
    `awaited` (set of str): The training tasks, such as ``worker:1``.
    `done`: Called once, from the listening thread, when all of these have ended; without
        ``failed``, also when one has failed.
    `failed`: Called once with the task that has failed permanently, and its exit code.
    `known` (set of str): Other tasks whose failures matter.
    `begun`: Called with each task that restarts.
    `start`: Identifies the current start of this task.
    """

    def __init__(
        self,
        address: str,
        awaited: set[str],
        done: Callable[[], None],
        failed: Callable[[str, int], None] | None = None,
        known: frozenset[str] = frozenset(),
        begun: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._trainers = frozenset(awaited)
        self._known = self._trainers | known
        self.start = ""
        self._starts: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended: set[str] = set()
        self._failures: set[str] = set()
        self._is_done = self._is_told = False
        self._done = done
        self._failed = failed
        self._begun = begun
        host, _, port = address.rpartition(":")
        place = "127.0.0.1" if host == "localhost" else ""
        listener = socket.create_server((place, int(port)), backlog=_BACKLOG)
        self._acceptor = Acceptor(listener, self._hear, "gridflow-finish", _CALL_SECONDS)

    @property
    def awaited(self) -> set[str]:
        """The training tasks that haven't reported success yet."""
        with self._lock:
            return set(self._trainers - self._ended)

    def has_begun(self, task: str) -> bool:
        """Return whether a task has sent any message."""
        with self._lock:
            return task in self._starts or task in self._ended | self._failures

    def has_succeeded(self, task: str) -> bool:
        """Return whether a task has reported success."""
        with self._lock:
            return task in self._ended

    def has_ended(self, task: str) -> bool:
        """Return whether a task has reported success or a permanent failure."""
        with self._lock:
            return task in self._ended | self._failures

    def forget_ends(self) -> None:
        """Wait for all tasks again."""
        with self._lock:
            self._ended.clear()

    def close(self) -> None:
        """Stop listening."""
        self._acceptor.close()

    def _hear(self, connection: socket.socket) -> Generator[int, None, None]:
        # Keep answering after the end: a task that missed the reply asks again.
        with connection:
            words = b""
            while not words.endswith(b"\n") and len(words) < _MOST_BYTES:
                yield select.POLLIN
                piece = connection.recv(_MOST_BYTES - len(words))
                if not piece:
                    break
                words += piece
            news = json.loads(words)
            task = news.get("task") if isinstance(news, dict) else None
            is_known = isinstance(task, str) and task in self._known
            is_start = is_known and "begun" in news
            if is_start:
                self.note_start(str(task), str(news["begun"]))
            with contextlib.suppress(OSError):  # the message counts even if the answer is lost
                reply = f"ok {self.start}".rstrip() if is_known else "unknown task"
                connection.sendall(f"{reply}\n".encode())
        if is_known and not is_start:
            self._judge(str(task), news.get("code"))

    def note_start(self, task: str, start: str) -> None:
        """Record a task's start, and report it if the task has restarted."""
        with self._lock:
            is_anew = self._starts.get(task, start) != start
            self._starts[task] = start
        if is_anew:
            self._begun(task)

    def _judge(self, task: str, code: Any) -> None:
        with self._lock:
            (self._failures if code else self._ended).add(task)
        if code and self._failed is not None:
            if not self._is_told:
                self._is_told = True
                self._failed(task, code if type(code) is int else 1)
            return
        if (code or not self.awaited) and not self._is_done:
            self._is_done = True
            self._done()
