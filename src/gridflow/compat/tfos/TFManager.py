"""Queues and values that several processes share, behind a key.

The nodes of a cluster have such a thing in their own process (`gridflow.compat.tfos._queues`); this
one, a process of its own, is for programs that start it themselves.
"""

from __future__ import annotations

from multiprocessing import JoinableQueue
from multiprocessing.managers import BaseManager
from typing import TYPE_CHECKING, Any

from gridflow.compat.tfos import util

if TYPE_CHECKING:
    from collections.abc import Iterable


class TFManager(BaseManager):
    """A manager with ``get_queue(name)``, ``get(key)`` and ``set(key, value)``."""


mgr: TFManager | None = None
qdict: dict[str, Any] = {}
kdict: dict[str, Any] = {}


def _get_queue(name: str) -> Any:
    return qdict.get(name)


def _get(key: str) -> Any:
    return kdict[key]


def _set(key: str, value: Any) -> None:
    kdict[key] = value


def start(authkey: bytes, queues: Iterable[str], mode: str = "local") -> TFManager:
    """Start a manager.

    Parameters
    ----------
    authkey : bytes
        Who connects has to know it; nothing of anybody else is read.
    queues : iterable of str
    mode : {'local', 'remote'}, default 'local'
        Whether only processes of this host can connect.
    """
    global mgr  # noqa: PLW0603 (as the original has it)
    qdict.clear()
    kdict.clear()
    qdict.update({name: JoinableQueue() for name in queues})
    TFManager.register("get_queue", callable=_get_queue)
    TFManager.register("get", callable=_get)
    TFManager.register("set", callable=_set)
    address = (util.get_ip_address(), 0) if mode == "remote" else None
    mgr = TFManager(address, authkey=authkey)
    mgr.start()
    return mgr


def connect(address: Any, authkey: bytes) -> TFManager:
    """Connect to a manager that runs.

    Parameters
    ----------
    address : str or (str, int)
        Its ``address``.
    authkey : bytes
    """
    for name in ("get_queue", "get", "set"):
        TFManager.register(name)
    manager = TFManager(address, authkey=authkey)
    manager.connect()
    return manager
