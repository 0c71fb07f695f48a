"""How the tasks of a job hear that training is over, where their target doesn't end them itself.

Servers and an evaluator end once all who train have told them that they have succeeded. All tasks
end once one has told them that it has failed for good: the rest would wait for it without an end.
Only names of tasks and exit codes travel. Like TensorFlow's own ports, these aren't authenticated:
they belong into a network of the job's own.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument
from gridflow.wire.acceptor import Acceptor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

_MOST_BYTES: Final = 1024
_CALL_SECONDS: Final = 5.0
_PAUSE: Final = 0.5
_BACKLOG: Final = 128

#: Where those listen who end with the training, and where all others do, by role.
FINISH: Final = "GRIDFLOW_FINISH"
GIVE_UP: Final = "GRIDFLOW_GIVE_UP"


def finish_addresses(environ: Mapping[str, str], name: str = FINISH) -> dict[str, list[str]]:
    """Return the addresses that one of both variables holds, by role."""
    text = environ.get(name, "")
    if not text:
        return {}
    try:
        tree = json.loads(text)
        return {str(role): [str(address) for address in hosts] for role, hosts in tree.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"{name} can't be read ({error}): {text!r}.") from error


def tell(
    servers: dict[str, list[str]], task: str, code: int, *, seconds: float = 30.0
) -> list[str]:
    """Tell everybody at these addresses that a task has ended; return those that didn't hear it."""
    waiting = [address for hosts in servers.values() for address in hosts]
    message = json.dumps({"task": task, "code": code}).encode() + b"\n"
    end = time.monotonic() + seconds
    while waiting:
        waiting = [address for address in waiting if not _call(address, message)]
        if not waiting or time.monotonic() >= end:
            break
        time.sleep(_PAUSE)
    return waiting


def _call(address: str, message: bytes) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_CALL_SECONDS) as connection:
            connection.sendall(message)
            return connection.recv(_MOST_BYTES).startswith(b"ok")
    except OSError:
        return False


class FinishListener:
    """Listens on a task's second port for the ends of others.

    Parameters
    ----------
    address : str
        ``host:port``; it binds the port on all interfaces, as the name is the target's, but for
        ``localhost``.
    awaited : set of str
        The tasks that train, like ``worker:1``.
    done : callable
        Called once, from the listening thread, when all of these have ended; and when one has
        failed, unless ``failed`` is there for that.
    failed : callable, optional
        Called once with the task that has failed for good, and its exit code.
    known : set of str
        Other tasks whose failure is news.
    """

    def __init__(
        self,
        address: str,
        awaited: set[str],
        done: Callable[[], None],
        failed: Callable[[str, int], None] | None = None,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._awaited = set(awaited)
        self._known = frozenset(awaited) | known
        self._over = False
        self._done = done
        self._failed = failed
        host, _, port = address.rpartition(":")
        place = "127.0.0.1" if host == "localhost" else ""
        listener = socket.create_server((place, int(port)), backlog=_BACKLOG)
        self._acceptor = Acceptor(listener, self._hear, "gridflow-finish", _CALL_SECONDS)

    @property
    def awaited(self) -> set[str]:
        """The tasks that train and have not told of their end."""
        return set(self._awaited)

    def close(self) -> None:
        """Stop listening."""
        self._acceptor.close()

    def _hear(self, connection: socket.socket) -> Generator[int, None, None]:
        # It goes on answering after the last word, for a task that missed the reply and asks again.
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
            with contextlib.suppress(OSError):  # it counts, though the answer doesn't arrive
                connection.sendall(b"ok\n" if is_known else b"unknown task\n")
        if is_known and not self._over:
            self._judge(str(task), news.get("code"))

    def _judge(self, task: str, code: Any) -> None:
        if code and self._failed is not None:
            self._over = True
            self._failed(task, code if type(code) is int else 1)
            return
        self._awaited.discard(task)
        if code or not self._awaited:
            self._over = True
            self._done()
