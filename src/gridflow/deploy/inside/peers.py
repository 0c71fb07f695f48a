"""The DNS names of a task's peers: waits for them at the start, and notices when they disappear."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import StartTimeout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gridflow._spec.tf_config import ClusterMember

_PAUSE: Final = 0.5
_LOOKS: Final = 5.0
#: Seconds before the Job controller restarts a pod, doubled with each failure up to the maximum
#: (kubernetes/kubernetes, pkg/controller/job/job_controller.go, DefaultJobPodFailureBackOff and
#: MaxJobPodFailureBackOff).
_BACK_OFF: Final = 10.0
_MOST_BACK_OFF: Final = 600.0


def wait_for_peers(
    who: ClusterMember,
    seconds: float,
    stopped: threading.Event,
    resolve: Callable[..., Any] = socket.getaddrinfo,
) -> None:
    """Wait until every peer's name resolves.

    TensorFlow fails at once if a name doesn't resolve, but targets publish names one after the
    other.

    Raises `StartTimeout`: If any doesn't resolve within ``seconds``; the message lists them all.
    """
    waiting = list(dict.fromkeys(address.rpartition(":")[0] for address in who.peers))
    end = time.monotonic() + seconds
    while waiting:
        waiting = [host for host in waiting if not _resolves(host.strip("[]"), resolve)]
        if not waiting or stopped.is_set():
            return
        if time.monotonic() >= end:
            reason = (
                f"{', '.join(waiting)} did not resolve in {seconds:g} s. Check that all tasks are "
                "running, and that their Service publishes unready addresses."
            )
            raise StartTimeout(reason)
        stopped.wait(_PAUSE)


def _resolves(host: str, resolve: Callable[..., Any]) -> bool:
    try:
        resolve(host, None)
    except OSError:
        return False
    return True


def longest_back_off(restarts: int) -> float:
    """Return the Job controller's longest delay before a restart, for a number of restarts."""
    return min(_MOST_BACK_OFF, _BACK_OFF * 2 ** (restarts - 1)) if restarts > 0 else 0.0


class Absence:
    """Notices when a task's name is gone for longer than a restart takes.

    `hosts` (mapping of str to str): The host of each task.
    `awaited`: Returns the tasks that are still needed.
    `patience`: Seconds that a name may be gone.
    `gone`: Called once, with the task.
    """

    def __init__(
        self,
        hosts: Mapping[str, str],
        awaited: Callable[[], set[str]],
        patience: float,
        gone: Callable[[str], None],
        resolve: Callable[..., Any] = socket.getaddrinfo,
    ) -> None:
        self._hosts = dict(hosts)
        self._awaited = awaited
        self._patience = patience
        self._gone = gone
        self._resolve = resolve
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gridflow-absence", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop looking, without waiting for a lookup in progress, because resolvers can be slow."""
        self._closed.set()

    def _watch(self) -> None:
        last = dict.fromkeys(self._hosts, time.monotonic())
        while not self._closed.wait(max(0.1, min(_LOOKS, self._patience / 4))):
            for task in self._awaited() & set(last):
                now = time.monotonic()
                if _resolves(self._hosts[task].strip("[]"), self._resolve):
                    last[task] = now
                elif now - last[task] > self._patience and not self._closed.is_set():
                    self._gone(task)
                    return
