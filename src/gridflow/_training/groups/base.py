"""Shared by the groups of all backends: addresses, interfaces, a stand-in for a strategy."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import psutil

from gridflow._gpu import devices
from gridflow._spec.gpus import VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gridflow._spec.cluster import ClusterSpec
    from gridflow._training.process import TaskProcess

#: Read by gloo and NCCL to choose the interface that leads to the other ranks.
_INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
#: Pause between checks whether a peer is listening.
_LOOK_SECONDS: Final = 0.01
_CONNECT_SECONDS: Final = 5.0


class SynchronousStrategy:
    """Stands for ``tf.distribute.Strategy`` on other backends, so that one function fits all.

    `replicas`: Devices that share a global batch.
    """

    def __init__(self, replicas: int) -> None:
        self.num_replicas_in_sync = replicas

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing: the group holds for the whole process."""
        return contextlib.nullcontext()


def address(cluster: ClusterSpec, rank: int) -> tuple[str, int]:
    """Return host and port of a rank."""
    host, _, port = cluster.address(cluster.ranks[rank]).rpartition(":")
    return host, int(port)


def cores(process: TaskProcess) -> int:
    """Return this rank's share of the host's cores.

    Ranks wait for each other in each step, so more threads than cores slow all of them down.
    """
    mine, _ = address(process.cluster_spec, process.rank)
    everybody = [each for role in process.setup.addresses.values() for each in role]
    here = sum(each.rpartition(":")[0] == mine for each in everybody)
    return max(1, len(os.sched_getaffinity(0)) // max(1, here))


def own_gpus(count: int) -> list[str]:
    """Return the names of this process's GPUs.

    `count`: As the backend counts them.
    """
    return devices.names(os.environ.get(VISIBLE), count)


def share_gpus(everyone: Iterable[Sequence[str]]) -> bool:
    """Return whether two ranks have the same GPU, which NCCL refuses; ``everyone``: `own_gpus`."""
    names = [name for each in everyone for name in each]
    return len(set(names)) < len(names)


def await_first(process: TaskProcess) -> None:
    """Wait until the first rank, to which all others connect, is listening."""
    if process.rank:
        first = process.cluster_spec.address(process.cluster_spec.ranks[0])
        await_listeners([first], process.spec.start_timeout)


def await_listeners(addresses: Iterable[str], seconds: float) -> bool:
    """Wait until peers are listening, and return whether all are.

    A gRPC process that can't connect retries after a whole second, which is half of the startup
    time of a group of forked processes.
    """
    give_up = time.monotonic() + seconds
    for peer in addresses:
        host, _, port = peer.rpartition(":")
        while True:
            left = give_up - time.monotonic()
            try:
                limit = max(_LOOK_SECONDS, min(_CONNECT_SECONDS, left))
                socket.create_connection((host.strip("[]"), int(port)), limit).close()
                break
            except OSError:
                if time.monotonic() > give_up:
                    return False
                time.sleep(_LOOK_SECONDS)
    return True


def bindable(host: str) -> str:
    """Return the address to listen on: this process's own, if a local interface has it.

    Behind network address translation none has it; then all interfaces are used.
    """
    if _interface(host) is not None:
        return host
    return "[::]" if ":" in host else "0.0.0.0"  # noqa: S104


def choose_interface(host: str) -> None:
    """Make collectives use the interface that has this process's address."""
    name = _interface(host)
    if name is not None:
        for variable in _INTERFACE_VARIABLES:
            os.environ.setdefault(variable, name)


def _interface(host: str) -> str | None:
    """Return the name of the network interface that has an address, or None."""
    interfaces: dict[str, Any] = psutil.net_if_addrs()
    for name, addresses in interfaces.items():
        if any(each.address == host.strip("[]") for each in addresses):
            return name
    return None
