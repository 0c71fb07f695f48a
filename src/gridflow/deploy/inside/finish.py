"""How the tasks of a job hear that training is over, where their target doesn't end them itself.

Servers and an evaluator end once all who train have told them that they have succeeded. All tasks
end once one has told them that it has failed for good: the rest would wait for it without an end.
Only names of tasks and exit codes travel. Like TensorFlow's own ports, these aren't authenticated:
they belong into a network of the job's own.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MOST_BYTES: Final = 1024
_CALL_SECONDS: Final = 5.0
_PAUSE: Final = 0.5


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
        self._closing = self._over = False
        self._done = done
        self._failed = failed
        host, _, port = address.rpartition(":")
        place = "127.0.0.1" if host == "localhost" else ""
        self._socket = socket.create_server((place, int(port)))
        self._thread = threading.Thread(target=self._listen, name="gridflow-finish", daemon=True)
        self._thread.start()

    @property
    def awaited(self) -> set[str]:
        """The tasks that train and have not told of their end."""
        return set(self._awaited)

    def close(self) -> None:
        """Stop listening."""
        self._closing = True
        # Closing alone doesn't wake a thread that waits in accept().
        with socket.socket() as waker:
            waker.settimeout(1)
            waker.connect_ex(("127.0.0.1", self._socket.getsockname()[1]))
        self._thread.join(timeout=_CALL_SECONDS + 1)
        self._socket.close()

    def _listen(self) -> None:
        # It goes on answering after the last word, for a task that missed the reply and asks again.
        while not self._closing:
            connection, _ = self._socket.accept()
            with connection:
                news = self._hear(connection)
            if news is not None and not self._over:
                self._judge(str(news["task"]), news.get("code"))

    def _judge(self, task: str, code: Any) -> None:
        if code and self._failed is not None:
            self._over = True
            self._failed(task, code if isinstance(code, int) else 1)
            return
        self._awaited.discard(task)
        if code or not self._awaited:
            self._over = True
            self._done()

    def _hear(self, connection: socket.socket) -> dict[str, Any] | None:
        connection.settimeout(_CALL_SECONDS)
        try:
            news = json.loads(connection.recv(_MOST_BYTES))
            if not isinstance(news, dict) or str(news.get("task")) not in self._known:
                connection.sendall(b"unknown task\n")
                return None
            connection.sendall(b"ok\n")
        except (OSError, ValueError):
            return None
        return news
