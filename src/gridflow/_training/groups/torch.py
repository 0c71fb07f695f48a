"""A group of torch processes."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from gridflow._collectives import tensors
from gridflow._training.groups import base, cpu
from gridflow.errors import GridflowError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gridflow._training.process import TaskProcess

__all__ = ["equal_parts", "join", "leave", "spread"]

_BACKLOG: Final = 1024


def join(process: TaskProcess, timeout: float) -> None:
    """Wait for all ranks.

    Ranks that can be replaced are in no group of torch's, whose members couldn't change.
    """
    import torch
    from torch import distributed

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(base.cores(process))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    tensors.EXCHANGE.is_of_several = True
    goes_on = process.regrouping
    if goes_on is not None:
        _refuse_gpus(count)
    met = cpu.meet(process, base.own_gpus(count))
    if goes_on is not None:
        goes_on.use(tensors.EXCHANGE)
    if met is None:
        return
    group, gpus = met
    is_own = cpu.adds_up(process, gpus)
    if is_own:
        tensors.EXCHANGE.group = group
    process.agreement.join(group, in_steps=is_own and not any(gpus))
    if goes_on is not None:
        return
    transport = _transport(gpus)
    base.await_first(process)
    host, port = base.address(process.cluster_spec, 0)
    listener = _listen(host, port) if process.is_chief else None
    store = distributed.TCPStore(
        host.strip("[]"),
        port,
        process.num_workers,
        process.is_chief,
        timedelta(seconds=timeout),
        # The store closes it.
        master_listen_fd=listener.detach() if listener is not None else None,
    )
    if torch.cuda.is_available():
        torch.cuda.set_device(0)  # the process sees only its task's devices
    distributed.init_process_group(
        transport,
        store=store,
        rank=process.rank,
        world_size=process.num_workers,
    )


def _refuse_gpus(count: int) -> None:
    """Refuse GPUs where ranks can be replaced."""
    if count:
        raise GridflowError(
            f"workers on torch can't come and go, or be replaced, if they use GPUs; here {count} "
            "are visible. Hide them with env={'CUDA_VISIBLE_DEVICES': ''}, or use max_restarts=."
        )


def _transport(everyone: Sequence[Sequence[str]]) -> str:
    """Return what torch exchanges tensors through: NCCL, unless ranks share a GPU."""
    if not any(everyone):
        return "gloo"
    if not all(everyone):
        without = [rank for rank, gpus in enumerate(everyone) if not gpus]
        raise GridflowError(
            f"all ranks of a model on torch need a GPU, or none may have one; ranks {without} have "
            "none. Set gpus= for all roles that train."
        )
    return "cpu:gloo,cuda:gloo" if base.share_gpus(everyone) else "cpu:gloo,cuda:nccl"


def spread(num_workers: int) -> int:
    """Return the number of ranks; the patches of Keras do the rest."""
    return num_workers


def equal_parts() -> None:
    """Return None: ranks may have batches of different sizes."""


def leave() -> None:
    """Do nothing: a process leaves the group cleanly when it exits."""


def _listen(host: str, port: int) -> socket.socket:
    """Return a listener on the port that the agent holds; torch couldn't bind it itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((base.bindable(host).strip("[]"), port))
    listener.listen(_BACKLOG)
    return listener
