"""How servers, which never end by themselves, hear that training is over.

Whoever trains tells every server once it has ended for good; a server ends when all of them have.
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


def finish_addresses(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return ``GRIDFLOW_FINISH``: where each server listens, by role."""
    text = environ.get("GRIDFLOW_FINISH", "")
    if not text:
        return {}
    try:
        tree = json.loads(text)
        return {str(role): [str(address) for address in hosts] for role, hosts in tree.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"GRIDFLOW_FINISH can't be read ({error}): {text!r}.") from error


def tell(
    servers: dict[str, list[str]], task: str, code: int, *, seconds: float = 30.0
) -> list[str]:
    """Tell every server that a task has ended; return those that did not hear it in time."""
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
    """Listens on a server's second port until all the tasks that train have ended.

    Parameters
    ----------
    address : str
        ``host:port``; it binds the port on all interfaces, as the name is the target's, but for
        ``localhost``.
    awaited : set of str
        The tasks, like ``worker:1``.
    done : callable
        Called once, from the listening thread, when all have ended or one has failed for good.
    """

    def __init__(self, address: str, awaited: set[str], done: Callable[[], None]) -> None:
        self._awaited = set(awaited)
        self._known = frozenset(awaited)
        self._closing = False
        self._done = done
        host, _, port = address.rpartition(":")
        place = "127.0.0.1" if host == "localhost" else ""
        self._socket = socket.create_server((place, int(port)))
        self._thread = threading.Thread(target=self._listen, name="gridflow-finish", daemon=True)
        self._thread.start()

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
            if news is None or not self._awaited:
                continue
            self._awaited.discard(str(news.get("task")))
            if news.get("code"):
                self._awaited.clear()
            if not self._awaited:
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
