"""Groups of processes under JAX and torch, joined before the user's function runs."""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import os
import socket
import zlib
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from gridflow.context import TrainingContext

#: What torch (gloo) and NCCL read to find the interface that leads to the others.
_INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_BACKLOG: Final = 1024
#: All leave together; a rank that doesn't come is ended by its agent anyway.
_SHUTDOWN_SECONDS: Final = 5


class SynchronousStrategy:
    """Stands for ``tf.distribute.Strategy`` under JAX and torch, so that one function fits all.

    Parameters
    ----------
    replicas : int
        Devices that share a global batch.
    """

    def __init__(self, replicas: int) -> None:
        self.num_replicas_in_sync = replicas

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing: the group holds for the whole process."""
        return contextlib.nullcontext()


def join(ctx: TrainingContext, backend: str, strategy: str, timeout: float) -> SynchronousStrategy:
    """Wait for all ranks, and let Keras train one model on all of them. Imports Keras.

    With ``strategy="none"`` and with a single worker there is nobody to wait for.
    """
    together = strategy == "multi_worker_mirrored"
    if together and ctx.num_workers > 1:
        _choose_interface(_split(ctx, ctx.rank)[0])
        if backend == "jax":
            _join_jax(ctx, timeout)
        else:
            _join_torch(ctx, timeout)
    # All ranks alike: nobody sends initial weights to the others.
    _seed(ctx.seed if ctx.seed is not None else zlib.crc32(ctx.job.encode()))
    if not together:
        return SynchronousStrategy(1)
    if backend == "torch":
        return SynchronousStrategy(ctx.num_workers)
    import jax

    import keras

    # The batches that a rank feeds are its own part of the global ones.
    distribution = keras.distribution.DataParallel(auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return SynchronousStrategy(jax.device_count())


def leave(backend: str) -> None:
    """Leave the group in good order, at the same time as all others."""
    if backend == "jax":
        import jax

        jax.distributed.shutdown()


def _join_jax(ctx: TrainingContext, timeout: float) -> None:
    import jax
    from jax._src import api, xla_bridge

    # At exit it waits for all others, who may be gone; `leave` is called when they are not.
    atexit.unregister(api.clean_up)
    # Its handler of SIGTERM would keep the process from being ended.
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX lets gloo find its own address by the name of the host, which on many machines is that of
    # the loopback interface.
    library: Any = xla_bridge._jax  # noqa: SLF001
    library.make_gloo_tcp_collectives = functools.partial(
        library.make_gloo_tcp_collectives, hostname=_split(ctx, ctx.rank)[0]
    )
    host, port = _split(ctx, 0)
    jax.distributed.initialize(
        coordinator_address=f"{host}:{port}",
        coordinator_bind_address=f"{_bindable(host)}:{port}",
        num_processes=ctx.num_workers,
        process_id=ctx.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=math.ceil(timeout),
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
    )


def _join_torch(ctx: TrainingContext, timeout: float) -> None:
    import torch
    from torch import distributed

    host, port = _split(ctx, 0)
    listener = _listen(host, port) if ctx.is_chief else None
    store = distributed.TCPStore(
        host,
        port,
        ctx.num_workers,
        ctx.is_chief,
        timedelta(seconds=timeout),
        # The store closes it.
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(0)  # the process sees the devices of its task alone
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        store=store,
        rank=ctx.rank,
        world_size=ctx.num_workers,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listener on the port that the agent holds: torch itself couldn't bind it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((_bindable(host).strip("[]"), port))
    listener.listen(_BACKLOG)
    return listener


def _bindable(host: str) -> str:
    """Return the address to listen on: this process's own, where an interface of it has it.

    Behind a translation of addresses none has: then it is all interfaces.
    """
    if _interface(host) is not None:
        return host
    return "[::]" if ":" in host else "0.0.0.0"  # noqa: S104


def _split(ctx: TrainingContext, rank: int) -> tuple[str, int]:
    spec = ctx.cluster_spec
    host, _, port = spec.address(spec.ranks[rank]).rpartition(":")
    return host, int(port)


def _choose_interface(host: str) -> None:
    """Let collectives use the interface that has this process's own address."""
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


def _seed(seed: int) -> None:
    """Do what ``keras.utils.set_random_seed`` does, without importing TensorFlow for it."""
    from keras.src.utils import rng_utils

    tensorflow, rng_utils.tf = rng_utils.tf, SimpleNamespace(available=False)
    try:
        rng_utils.set_random_seed(seed)
    finally:
        rng_utils.tf = tensorflow
