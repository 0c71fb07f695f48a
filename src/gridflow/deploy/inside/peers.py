"""The names of a task's peers: waited for at the start."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Final

from gridflow.errors import StartTimeout

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from gridflow.spec.tf_config import ClusterMember

_PAUSE: Final = 0.5


def wait_for_peers(
    who: ClusterMember,
    seconds: float,
    stopped: threading.Event,
    resolve: Callable[..., Any] = socket.getaddrinfo,
) -> None:
    """Wait until every peer's name resolves.

    TensorFlow gives up at once on a name that doesn't resolve yet, while a target publishes names
    one after the other.

    Raises
    ------
    StartTimeout
        If one doesn't within ``seconds``; the message names them all.
    """
    waiting = list(dict.fromkeys(address.rpartition(":")[0] for address in who.peers))
    end = time.monotonic() + seconds
    while waiting:
        waiting = [host for host in waiting if not _resolves(host.strip("[]"), resolve)]
        if not waiting or stopped.is_set():
            return
        if time.monotonic() >= end:
            reason = (
                f"{', '.join(waiting)} did not resolve in {seconds:g} s. Are all tasks started,"
            )
            raise StartTimeout(reason + " and does their Service publish unready addresses?")
        stopped.wait(_PAUSE)


def _resolves(host: str, resolve: Callable[..., Any]) -> bool:
    try:
        resolve(host, None)
    except OSError:
        return False
    return True
